//! Tests that cross crates: the commands as a user runs them, over a real `mpirun`, and the rules of the house.

mod clocks;
mod commands;
mod damage;
mod exec;
mod faults;
mod hang;
mod imports;
mod kineto_writer;
mod native;
mod round_trip;
mod support;
mod tables;
mod tidy;
