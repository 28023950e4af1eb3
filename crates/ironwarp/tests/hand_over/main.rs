//! Hands adapters over between real processes, under full load and with processes that are killed or stopped (requirement X2).

mod control;
mod kills;
mod load;
mod pause;
mod role;
mod scene;
mod simple;
mod station;
mod stream;
