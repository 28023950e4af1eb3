//! Hands adapters over between real processes, under full load and with processes that are killed or stopped (requirement X2).

mod control;
mod load;
mod role;
mod scene;
mod simple;
mod station;
mod stream;
