"""The command line `quorlock`, built on the public API.

    main.py            the commands by name, each loaded when it is called
    exit_status.py     exit statuses, and the error messages on stderr
    options.py         the options that name the nodes
    nodes.py           adds these options to the commands that need nodes
    usage_errors.py    usage errors of click in the form of all errors
    help.py            `quorlock help`; examples.py has the examples of every command
    config.py          the TOML file, environment variables and passwords behind these options
    durations.py       `30s`, `2h`
    node_pollers.py    polls each node from a thread: for SCAN (`scan`) and for `top`
    background.py      calls in threads that the main thread awaits and may interrupt
    poll_loop.py       inspects many resources at an interval
    text_layout.py     text that fits a terminal; `full_screen` draws it

Each of the larger commands has a package: run, doctor, top, bench, local.

`quorlock --help` and completion load click and these few modules: no rich, no socket, no driver.
"""
