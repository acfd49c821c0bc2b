//! What the server lets through its door: without a key, from web pages, under other names, and with keys that are wrong.

mod crowds;
mod data_dir;
mod keys;
mod limits;
mod paths;
mod quotas;
mod surface;
