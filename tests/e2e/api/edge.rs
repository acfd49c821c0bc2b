//! Access checks of the server: missing keys, wrong keys, web pages, and other host names.

mod crowds;
mod data_dir;
mod keys;
mod limits;
mod paths;
mod quotas;
mod surface;
