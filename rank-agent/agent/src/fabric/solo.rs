//! The fabric of a job with one rank.

use std::sync::Arc;

use super::{Buffers, Control, Fabric, Group, InFlight, Lane, Transfer};
use crate::Error;

/// The fabric of a job with one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

/// The sum over one rank: its own numbers.
struct CompletedSum(Buffers);

impl Control for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn version(&self) -> String {
        "none".into()
    }

    fn barrier(&self) -> Result<(), Error> {
        Ok(())
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        Ok(bytes)
    }

    fn all_gather(&self, _lane: Lane, mine: &[u64]) -> Result<Vec<u64>, Error> {
        Ok(mine.to_vec())
    }

    fn send_word(&self, _peer: usize, _word: i64) -> Result<(), Error> {
        Err(Error::Abandoned)
    }

    fn receive_word(&self, _peer: usize) -> Result<i64, Error> {
        Err(Error::Abandoned)
    }

    fn abandon(&self, _exit_code: u8) {}
}

impl Group for Solo {
    fn start(&self, transfer: Transfer, mut buffers: Buffers) -> Result<Box<dyn InFlight>, Error> {
        if matches!(transfer, Transfer::Send { .. } | Transfer::Receive { .. }) {
            return Err(Error::Abandoned);
        }
        std::mem::swap(&mut buffers.send, &mut buffers.recv);
        Ok(Box::new(CompletedSum(buffers)))
    }
}

impl Fabric for Solo {
    fn split(&self, _color: usize) -> Result<Arc<dyn Group>, Error> {
        Ok(Arc::new(Self))
    }
}

impl InFlight for CompletedSum {
    fn test(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    fn into_buffers(self: Box<Self>) -> Buffers {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_one_rank_is_its_own_numbers() {
        let buffers = Buffers { send: vec![1.0, 2.0], recv: vec![0.0; 2] };
        let mut sum = Solo.start(Transfer::AllReduce, buffers).unwrap();
        assert!(sum.test().unwrap());
        assert_eq!(sum.into_buffers().recv, [1.0, 2.0]);
        assert_eq!(Solo.all_gather(Lane::World, &[7]).unwrap(), [7]);
    }
}
