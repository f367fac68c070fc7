//! Several ranks on one GPU: how NCCL is brought to accept it.
//!
//! NCCL refuses two ranks of one host on one device (`Duplicate GPU detected`). From 2.30.3 on it has a switch for it;
//! before, ranks that give different host names look like different machines to it, and talk over sockets. Both are
//! read from the environment when NCCL first looks, so they are set before anything else happens. Processes on one
//! device take turns, so this is for trying things out: its bandwidths mean nothing.

use clap::ValueEnum;

/// How ranks may share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShareGpu {
    /// The better of the two that this NCCL has.
    Auto,
    /// `NCCL_MULTI_RANK_GPU_ENABLE`, of NCCL 2.30.3 and newer.
    MultiRank,
    /// A host id (`NCCL_HOSTID`) of its own for every rank, and sockets between them; any NCCL.
    HostId,
}

/// The first NCCL that has the switch.
const MULTI_RANK_SINCE: i32 = 23_003;

/// What was decided, and what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    /// What is said of it.
    pub(super) said: String,
    /// Variables to set, where the user has not.
    pub(super) variables: Vec<(&'static str, String)>,
}

/// Decides for an NCCL of `version`; `own` tells this rank's process from all others, `ranks` is how many there are.
pub(super) fn decide(wanted: ShareGpu, version: i32, own: &str, ranks: usize) -> Result<Sharing, String> {
    let name = super::nccl::version_text(version);
    let by_switch = match wanted {
        ShareGpu::Auto => version >= MULTI_RANK_SINCE,
        ShareGpu::MultiRank if version < MULTI_RANK_SINCE => {
            return Err(format!(
                "--share-gpu multi-rank needs NCCL 2.30.3 or newer, and this is {name}: use --share-gpu host-id"
            ));
        }
        ShareGpu::MultiRank => true,
        ShareGpu::HostId => false,
    };
    // Blocks of all ranks' collectives must fit the device at once, or they wait for each other for ever.
    let blocks = (32 / ranks.max(1)).clamp(1, 16).to_string();
    Ok(if by_switch {
        Sharing {
            said: format!("ranks may share a GPU: NCCL {name} by NCCL_MULTI_RANK_GPU_ENABLE"),
            variables: vec![
                ("NCCL_MULTI_RANK_GPU_ENABLE", "1".into()),
                // 2.30 overlooks that NVLS does not go with it.
                ("NCCL_NVLS_ENABLE", "0".into()),
                ("NCCL_MAX_CTAS", blocks),
            ],
        }
    } else {
        Sharing {
            said: format!("ranks may share a GPU: NCCL {name} by a host id for every rank, over sockets"),
            variables: vec![
                ("NCCL_HOSTID", format!("rankscope-{own}")),
                ("NCCL_NET", "Socket".into()),
                ("NCCL_MNNVL_ENABLE", "0".into()),
                ("NCCL_MAX_CTAS", blocks),
            ],
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(wanted: ShareGpu, version: i32) -> Vec<&'static str> {
        let sharing = decide(wanted, version, "r3", 2).unwrap();
        sharing.variables.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn the_switch_is_taken_where_nccl_has_it() {
        let switch = ["NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS"];
        let host_id = ["NCCL_HOSTID", "NCCL_NET", "NCCL_MNNVL_ENABLE", "NCCL_MAX_CTAS"];
        assert_eq!(variables(ShareGpu::Auto, 22_809), host_id);
        assert_eq!(variables(ShareGpu::Auto, 23_002), host_id);
        assert_eq!(variables(ShareGpu::Auto, 23_003), switch);
        assert_eq!(variables(ShareGpu::Auto, 23_203), switch);
        assert_eq!(variables(ShareGpu::HostId, 23_203), host_id);
        assert_eq!(variables(ShareGpu::MultiRank, 23_007), switch);
    }

    #[test]
    fn a_switch_that_is_not_there_is_refused() {
        let why = decide(ShareGpu::MultiRank, 22_809, "r0", 2).unwrap_err();
        assert!(why.contains("NCCL 2.30.3 or newer, and this is 2.28.9"), "{why}");
    }

    #[test]
    fn what_was_decided_is_said_and_every_rank_is_its_own_host() {
        let sharing = decide(ShareGpu::Auto, 22_809, "r3", 4).unwrap();
        assert_eq!(sharing.said, "ranks may share a GPU: NCCL 2.28.9 by a host id for every rank, over sockets");
        assert_eq!(sharing.variables[0].1, "rankscope-r3");
        assert_eq!(sharing.variables[3], ("NCCL_MAX_CTAS", "8".into()));
    }
}
