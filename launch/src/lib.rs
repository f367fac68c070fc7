//! The rank of a process, and the address of rank 0, from the environment of its launcher.
//!
//! A process learns its rank from its launcher's variables ([`Identity::from_env`]), which needs no MPI. With MPI, the
//! library's rank must agree with it ([`check_world`]): if the launcher belongs to another MPI than the program is linked
//! with, the program starts as N processes with rank 0 of 1, and would silently train N times side by side.
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

#![warn(missing_docs)]

mod error;
mod identity;
mod launcher;
mod meeting;
mod world;

pub use error::Error;
pub use identity::Identity;
pub use launcher::Launcher;
pub use meeting::{MASTER_PORT_OFFSET, Meeting};
pub use world::{World, check_world};
