//! How the ranks of a job come up and find each other.
//!
//! A process learns its rank from the environment that its launcher left ([`Identity::from_env`]), which needs no MPI.
//! Where there is MPI, what the library says must agree with it ([`check_world`]): a program started by the launcher of
//! another MPI than it was linked with comes up as N processes that each believe they are rank 0 of 1, and would train
//! N times side by side without a word.
//!
//! ```
//! use launch::{Identity, Launcher};
//!
//! let env = |name: &str| match name {
//!     "OMPI_COMM_WORLD_RANK" => Some("3".to_owned()),
//!     "OMPI_COMM_WORLD_SIZE" => Some("8".to_owned()),
//!     _ => None,
//! };
//! let identity = Identity::from_env(&env)?;
//! assert_eq!((identity.rank, identity.world_size, identity.launcher), (3, 8, Launcher::OpenMpi));
//! # Ok::<(), launch::Error>(())
//! ```

mod error;
mod identity;
mod meeting;
mod world;

pub use error::Error;
pub use identity::{Identity, Launcher};
pub use meeting::{MASTER_PORT_OFFSET, Meeting};
pub use world::{World, check_world};
