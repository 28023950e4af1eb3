//! Processes that are killed or stopped while an adapter moves to another host.
