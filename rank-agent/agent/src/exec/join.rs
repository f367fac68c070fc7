//! Meets the other ranks of a job over TCP.

use std::sync::Arc;
use std::time::Duration;

use launch::{Identity, Meeting};

use crate::Error;
use crate::error::ranks_text;
use crate::fabric::solo::Solo;
use crate::fabric::tcp::{Limits, Place, Tcp, Token};
use crate::fabric::{Control, Stop};

/// The ranks that have met.
pub(super) struct Joined {
    pub(super) control: Arc<dyn Control>,
    /// Name of the job; `None` for a job of one rank.
    pub(super) job: Option<String>,
    /// The ranks with which this rank's clock is not compared, and why; `None`: all have met.
    pub(super) apart: Option<String>,
    /// A note to the user on the address at which rank 0 listens.
    pub(super) note: Option<String>,
}

/// Waits for the other ranks, at most `timeout`. Ranks that do not come are no error. `rendezvous` is the user's address of
/// rank 0. Collective.
///
/// # Errors
/// [`Error::Launch`] if nothing gives the address of rank 0; [`Error::Stopped`].
pub(super) fn join(
    identity: &Identity,
    rendezvous: Option<&str>,
    timeout: Duration,
    stop: Stop,
) -> Result<Joined, Error> {
    if identity.world_size == 1 {
        return Ok(Joined { control: Arc::new(Solo), job: None, apart: None, note: None });
    }
    let env = |name: &str| std::env::var(name).ok();
    let meeting = Meeting::find(identity, rendezvous, &env)?;
    // Without a secret, the job name keeps ranks of other jobs apart.
    let token = env("RANKSCOPE_TOKEN").filter(|token| !token.is_empty()).unwrap_or_else(|| meeting.job.clone());
    let place = Place { rank: rank_of(identity.rank), size: rank_of(identity.world_size) };
    let limits = Limits { join: timeout, ..Limits::default() };
    let joined = Tcp::join(place, &meeting, &Token::new(token), limits, stop.clone());
    let fabric = match joined {
        Err(error @ (Error::Network { .. } | Error::Missing { .. } | Error::WrongPeer(_))) => {
            Tcp::alone(place.rank, error, limits, stop)
        }
        joined => joined?,
    };
    let note = fabric.note().map(String::from);
    let others = |why: &Error| match (why, fabric.size()) {
        (Error::Missing { ranks, .. }, 2..) => ranks_text(ranks),
        _ => "the other ranks".into(),
    };
    let apart = fabric.absent().map(|why| format!("clocks are not compared with {}: {why}", others(why)));
    Ok(Joined { control: Arc::new(fabric), job: Some(meeting.job), apart, note })
}

pub(super) fn rank_of(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}
