//! The address at which rank 0 of a job listens when no MPI connects the ranks.
//!
//! Every rank computes the same address from the variables of its launcher. Ranks of one host meet at Unix sockets instead, which are
//! named by the job and the port.

use std::net::IpAddr;

use twox_hash::XxHash3_64;

use crate::{Error, Identity, Launcher};

/// Offset from `MASTER_PORT`, which the program itself uses.
pub const MASTER_PORT_OFFSET: u16 = 1117;
/// First of the ports that are computed from a job's name.
const FIRST_PORT: u16 = 20_000;
/// Number of such ports; they end below the range that Linux assigns by itself (32768 and up).
const PORTS: u64 = 12_000;

/// The address of rank 0, and the name of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Host name or address of rank 0.
    pub host: String,
    /// Port of rank 0.
    pub port: u16,
    /// Whether all ranks are on this host.
    pub is_local: bool,
    /// A name that differs between jobs on the same hosts; not a secret.
    pub job: String,
    /// The variables or the option that give the address.
    pub source: &'static str,
}

impl Meeting {
    /// The meeting of a job with more than one rank. `env` looks up a variable; `given` is the user's `host:port`, which
    /// has precedence.
    ///
    /// # Errors
    /// [`Error::NoMeeting`] if no variable gives the address of rank 0, [`Error::Address`] if one is not an address.
    pub fn find(identity: &Identity, given: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let set = |name: &str| env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let job = job_name(identity, &set);
        let is_local = local_ranks(identity.launcher, &set) == Some(identity.world_size);
        if let Some(given) = given {
            let (host, port) = parse_address(given).ok_or_else(|| address_error("--rendezvous", given))?;
            let is_local = is_local || is_loopback(&host);
            return Ok(Self { host, port, is_local, job, source: "--rendezvous" });
        }
        let host = |host: String, is_local: bool| if is_local { LOOPBACK.to_owned() } else { host };
        if let (Some(address), Some(port)) = (set("MASTER_ADDR"), set("MASTER_PORT")) {
            let port: u16 = port.parse().map_err(|_| address_error("MASTER_PORT", &port))?;
            let source = "MASTER_ADDR and MASTER_PORT";
            // Ranks of other hosts cannot reach a loopback.
            let is_local = is_local || is_loopback(&address);
            return Ok(Self { host: host(address, is_local), port: beside(port), is_local, job, source });
        }
        let port = port_of(&job);
        if is_local {
            return Ok(Self { host: LOOPBACK.into(), port, is_local, job, source: "all ranks are on this host" });
        }
        if identity.launcher == Launcher::Slurm
            && let Some(list) = set("SLURM_STEP_NODELIST").or_else(|| set("SLURM_JOB_NODELIST"))
        {
            let first = first_node(&list).ok_or_else(|| address_error("SLURM_STEP_NODELIST", &list))?;
            return Ok(Self { host: first, port, is_local, job, source: "SLURM_STEP_NODELIST" });
        }
        Err(Error::NoMeeting { launcher: identity.launcher })
    }
}

const LOOPBACK: &str = "127.0.0.1";

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

fn address_error(variable: &'static str, value: &str) -> Error {
    Error::Address { variable, value: value.to_owned() }
}

/// `host:port`, `1.2.3.4:port` or `[::1]:port`.
fn parse_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        // Without brackets, the end of an IPv6 address is ambiguous.
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// A port near `MASTER_PORT`, the same on every rank.
fn beside(port: u16) -> u16 {
    port.checked_add(MASTER_PORT_OFFSET).unwrap_or_else(|| port - MASTER_PORT_OFFSET)
}

/// A port for a job's name, the same on every rank.
fn port_of(job: &str) -> u16 {
    FIRST_PORT + u16::try_from(XxHash3_64::oneshot(job.as_bytes()) % PORTS).unwrap_or(0)
}

/// Number of ranks on this host, if the launcher sets it.
fn local_ranks(launcher: Launcher, set: &dyn Fn(&str) -> Option<String>) -> Option<i32> {
    let names: &[&str] = match launcher {
        Launcher::Torchrun | Launcher::Env => &["LOCAL_WORLD_SIZE"],
        Launcher::OpenMpi => &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        Launcher::Mpich => &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        Launcher::Slurm => return slurm_local(set),
        Launcher::None => return Some(1),
    };
    names.iter().find_map(|name| set(name)).and_then(|value| value.parse().ok())
}

/// `SLURM_STEP_TASKS_PER_NODE` is `8` for one node of eight, `4(x2)` or `4,3` for several.
fn slurm_local(set: &dyn Fn(&str) -> Option<String>) -> Option<i32> {
    set("SLURM_STEP_NUM_NODES").filter(|nodes| nodes == "1")?;
    set("SLURM_STEP_NUM_TASKS")?.parse().ok()
}

/// A name that is equal on all ranks of a job and differs between jobs of a user.
fn job_name(identity: &Identity, set: &dyn Fn(&str) -> Option<String>) -> String {
    let names: &[&str] = match identity.launcher {
        Launcher::Torchrun => &["TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
        Launcher::OpenMpi => &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"],
        Launcher::Mpich => &["PMI_PORT", "PMI_JOBID", "PMIX_NAMESPACE"],
        Launcher::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        Launcher::Env | Launcher::None => &["MASTER_ADDR", "MASTER_PORT"],
    };
    let values: Vec<String> = names.iter().map(|name| format!("{name}={}", set(name).unwrap_or_default())).collect();
    format!("{} {} {}", identity.launcher.as_str(), identity.world_size, values.join(" "))
}

/// The first host of SLURM's list: `n[3-5,9],login1` begins with `n3`, `rack[1-2]n[01-04]` with `rack1n01`.
fn first_node(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let at = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..at]);
        if !rest[at..].starts_with('[') {
            break;
        }
        let close = rest[at..].find(']')? + at;
        let first = rest[at + 1..close].split([',', '-']).next()?;
        name.push_str(first);
        rest = &rest[close + 1..];
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(given: Option<&str>, variables: &[(&str, &str)]) -> Result<Meeting, Error> {
        let env = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let identity = Identity::from_env(&env).unwrap();
        Meeting::find(&identity, given, &env)
    }

    fn place(variables: &[(&str, &str)]) -> (String, u16, bool) {
        let Meeting { host, port, is_local, .. } = find(None, variables).unwrap();
        (host, port, is_local)
    }

    const TORCHRUN: [(&str, &str); 7] = [
        ("TORCHELASTIC_RUN_ID", "none"),
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn the_port_has_a_fixed_offset_from_master_port() {
        assert_eq!(place(&TORCHRUN), ("node7".into(), 29500 + MASTER_PORT_OFFSET, false));
        let mut variables = TORCHRUN;
        variables[4].1 = "4";
        assert_eq!(place(&variables), (LOOPBACK.into(), 29500 + MASTER_PORT_OFFSET, true));
        variables[6].1 = "65000";
        assert_eq!(place(&variables).1, 65000 - MASTER_PORT_OFFSET);
        variables[6].1 = "lots";
        let error = find(None, &variables).unwrap_err().to_string();
        assert!(error.contains("MASTER_PORT") && error.contains("lots"), "{error}");
    }

    #[test]
    fn the_option_has_precedence() {
        let Meeting { host, port, is_local, source, .. } = find(Some("10.0.0.1:4000"), &TORCHRUN).unwrap();
        assert_eq!((host.as_str(), port, is_local, source), ("10.0.0.1", 4000, false, "--rendezvous"));
        assert_eq!(find(Some("[fe80::1]:4000"), &TORCHRUN).unwrap().host, "fe80::1");
        for (given, is_local) in
            [("127.0.0.1:1", true), ("[::1]:1", true), ("localhost:1", true), ("10.0.0.1:1", false)]
        {
            assert_eq!(find(Some(given), &TORCHRUN).unwrap().is_local, is_local, "{given}");
        }
        for wrong in ["node7", "node7:", ":4000", "node7:0", "node7:99999", "fe80::1:4000", "[fe80::1:4000"] {
            assert!(find(Some(wrong), &TORCHRUN).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn ranks_of_one_host_meet_on_its_loopback() {
        let open_mpi = |namespace, local| {
            [
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "8"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", local),
                ("PMIX_NAMESPACE", namespace),
            ]
        };
        let (host, port, is_local) = place(&open_mpi("1234", "8"));
        assert_eq!((host.as_str(), is_local), (LOOPBACK, true));
        assert!((FIRST_PORT..FIRST_PORT + PORTS as u16).contains(&port));
        assert_ne!(port, place(&open_mpi("1235", "8")).1, "another job, another port");
        let error = find(None, &open_mpi("1234", "4")).unwrap_err();
        assert_eq!(error, Error::NoMeeting { launcher: Launcher::OpenMpi });
        assert!(error.to_string().contains("--rendezvous"), "{error}");
    }

    #[test]
    fn slurm_names_its_first_node() {
        let step = |list, nodes| {
            [
                ("SLURM_PROCID", "9"),
                ("SLURM_STEP_NUM_TASKS", "16"),
                ("SLURM_STEP_NUM_NODES", nodes),
                ("SLURM_JOB_ID", "77"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_STEP_NODELIST", list),
            ]
        };
        assert_eq!(place(&step("gpu[03-05,9],login1", "5")).0, "gpu03");
        assert_eq!(place(&step("gpu03", "1")), (LOOPBACK.into(), place(&step("x", "1")).1, true));
        for (list, first) in [
            ("a,b", Some("a")),
            ("rack[1-2]n[01-04]", Some("rack1n01")),
            ("n[1,7]-ib", Some("n1-ib")),
            ("n[1", None),
            ("", None),
            (",b", None),
        ] {
            assert_eq!(first_node(list).as_deref(), first, "{list}");
        }
    }
}
