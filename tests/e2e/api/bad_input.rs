//! Invalid requests, as tables: each case gets the right status and error code in the one error format, and changes
//! nothing. The requests are raw bytes, because an HTTP client would clean up the hostile ones.

mod addresses;
mod bodies;
mod misspelt;
mod moments;
mod strangers;
mod world;
