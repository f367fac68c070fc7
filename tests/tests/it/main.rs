//! Tests that cross crates: the commands as a user runs them, over a real `mpirun`, and the rules of the house.

mod imports;
mod tidy;
