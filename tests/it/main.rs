//! Tests that cross crates: the commands as a user runs them, over a real `mpirun`, and the rules of the house.

mod clocks;
mod commands;
mod cuda;
mod cupti;
mod cupti_layouts;
mod cupti_real;
mod damage;
mod diff;
mod exec;
mod exec_chain;
mod exec_control;
mod exec_cuda;
mod exec_signals;
mod exec_steps;
mod export;
mod faults;
mod hang;
mod imports;
mod native;
mod rankscope;
mod report;
mod round_trip;
mod support;
mod tables;
mod tidy;
mod windows;
