//! How the ranks of a job come up and find each other.
