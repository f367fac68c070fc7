//! Timelines drawn and checked.
