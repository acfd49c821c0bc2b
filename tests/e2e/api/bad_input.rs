//! Bad input, as tables: every case is refused with the right status and code in the one shape of an error, and
//! changes nothing. Requests are written by hand, because a polite client would tidy up the hostile ones.

mod addresses;
mod bodies;
mod misspelt;
mod moments;
mod strangers;
mod world;
