//! Tests that cross crates: the commands as a user runs them, over a real `mpirun`, and the rules of the house.

mod clocks;
mod commands;
mod damage;
mod faults;
mod imports;
mod native;
mod support;
mod tables;
mod tidy;
