"""The command line `quorlock`, on the public API alone.

    main.py      the commands by name, each loaded when it is called
    exits.py     what ends a command early: a sentence and an exit status
    nodes.py     the options that say which nodes, for every command that asks some
    config.py    the TOML file, the environment and the passwords behind these options
    durations.py `30s`, `2h`
    asking.py    asks the nodes what no lock asks: which keys there are (`listing`), and for `top`
    aside.py     work in threads, which the main one can wait for and be interrupted
    turns.py     inspects many resources, again and again
    terminal.py  what fits on a terminal; `screen` draws it

and a room for each of the larger commands: run, doctor, top, bench, local.

`quorlock --help` and completion load click and these few modules: no rich, no socket, no core.
"""
