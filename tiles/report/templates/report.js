"use strict";

// Tables: a click on a head sorts by that column, numbers largest first; a second click turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const numeric = head.classList.contains("n");
    const order = head.getAttribute("aria-sort");
    const descending = order ? order === "ascending" : numeric;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = (row) => {
      const text = row.cells[column].textContent;
      if (!numeric) return text;
      const number = parseFloat(text.replace(/[,%]/g, ""));
      return Number.isNaN(number) ? -1 : number;
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const x = key(a), y = key(b);
      const way = x < y ? -1 : x > y ? 1 : 0;
      return descending ? -way : way;
    });
    table.tBodies[0].append(...rows);
  }));
}

// Charts: show the values under the pointer.
const tip = document.getElementById("tip");
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const pointer = svg.querySelector(".pointer");
  const count = chart.series[0][1].length;
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const inner = chart.width - chart.left - chart.right;
    const at = ((event.clientX - box.left) / box.width) * chart.width - chart.left;
    const entry = Math.floor((at / inner) * count);
    if (entry < 0 || entry >= count) return;
    const x = chart.left + ((entry + 0.5) * inner) / count;
    pointer.setAttribute("d", `M${x} 0V${svg.viewBox.baseVal.height}`);
    const name = chart.labels.length ? `: ${chart.labels[entry]}` : "";
    const shown = (value) => value === null ? "unknown" : `${value.toLocaleString("en")} ${chart.unit}`;
    const rows = chart.series.map(([title, values]) => `${title}  ${shown(values[entry])}`);
    tip.textContent = [`${chart.noun} ${entry + chart.first}${name}`, ...rows].join("\n");
    tip.hidden = false;
    const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
    tip.style.left = `${right ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16}px`;
    tip.style.top = `${event.clientY + 12}px`;
  });
  svg.addEventListener("mouseleave", () => { tip.hidden = true; pointer.setAttribute("d", ""); });
}
