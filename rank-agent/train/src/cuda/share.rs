//! Several ranks on one GPU: the variables that make NCCL accept it.
//!
//! NCCL refuses two ranks of one host on one device (`Duplicate GPU detected`). NCCL 2.30.3 and newer have a switch for
//! it. With older versions, ranks with different host ids count as different machines, and talk over sockets. NCCL reads
//! the variables only once, so they are set before anything else happens. Processes on one device take turns, so the
//! bandwidths of such a job mean nothing; it is a way to test without more devices.

use crate::options::ShareGpu;

/// The first NCCL that has the switch.
const MULTI_RANK_SINCE: i32 = 23_003;

/// The chosen way, and the variables for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    /// The sentence for rank 0's report.
    pub(super) note: String,
    /// Variables to set, where the user has not.
    pub(super) variables: Vec<(&'static str, String)>,
}

/// Chooses for an NCCL of `version`; `own` is unique to this rank's process, `ranks` is the number of ranks.
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
    // The blocks of all ranks' collectives must fit the device at once, else they wait for each other for ever.
    let blocks = (32 / ranks.max(1)).clamp(1, 16).to_string();
    Ok(if by_switch {
        Sharing {
            note: format!("ranks may share a GPU: NCCL {name} by NCCL_MULTI_RANK_GPU_ENABLE"),
            variables: vec![
                ("NCCL_MULTI_RANK_GPU_ENABLE", "1".into()),
                // NCCL 2.30 does not turn off NVLS, which does not work with the switch.
                ("NCCL_NVLS_ENABLE", "0".into()),
                ("NCCL_MAX_CTAS", blocks),
            ],
        }
    } else {
        Sharing {
            note: format!("ranks may share a GPU: NCCL {name} by a host id for every rank, over sockets"),
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
    fn the_switch_is_used_if_nccl_has_it() {
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
    fn the_switch_is_refused_for_an_older_nccl() {
        let why = decide(ShareGpu::MultiRank, 22_809, "r0", 2).unwrap_err();
        assert!(why.contains("NCCL 2.30.3 or newer, and this is 2.28.9"), "{why}");
    }

    #[test]
    fn the_choice_is_noted_and_every_rank_has_its_own_host_id() {
        let sharing = decide(ShareGpu::Auto, 22_809, "r3", 4).unwrap();
        assert_eq!(sharing.note, "ranks may share a GPU: NCCL 2.28.9 by a host id for every rank, over sockets");
        assert_eq!(sharing.variables[0].1, "rankscope-r3");
        assert_eq!(sharing.variables[3], ("NCCL_MAX_CTAS", "8".into()));
    }
}
