"""Drawing without end: programs, modules and executables on drawn machines, for as long as one asks.

    make fuzz MINUTES=30 [SEED=7] [KINDS=programs,control,large,modules,executables] [JOBS=2]

What fails is made smaller and written as Python into ``.fuzz/failures``; hypothesis' database in ``.fuzz/examples``
tries it again first the next time. Everything follows from the seed, which is printed.
"""
