//! What every daemon does alike: logs, signals, tasks that are drained.
