//! Rank, world size and launcher from the environment.

use crate::{Error, Launcher};

/// A process's place in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Global rank, from 0.
    pub rank: i32,
    /// Ranks in the job, at least 1.
    pub world_size: i32,
    /// Rank within the host, from 0, if the launcher sets it.
    pub local_rank: Option<i32>,
    /// The launcher of a job's ranks.
    pub launcher: Launcher,
}

/// The variables of one launcher.
struct Convention {
    launcher: Launcher,
    /// A variable that only this launcher sets.
    marker: Option<&'static str>,
    rank: &'static str,
    world_size: &'static str,
    /// The first of these that is set.
    local_rank: &'static [&'static str],
    /// Whether a rank without a world size is an error; else the variable may belong to another program.
    is_strict: bool,
}

const SLURM: Convention = Convention {
    launcher: Launcher::Slurm,
    // A batch script or an salloc shell has SLURM_PROCID and SLURM_NTASKS, but is one process. Only a job step, which srun
    // creates, has its own number of tasks.
    marker: Some("SLURM_STEP_NUM_TASKS"),
    rank: "SLURM_PROCID",
    world_size: "SLURM_STEP_NUM_TASKS",
    local_rank: &["SLURM_LOCALID"],
    is_strict: false,
};

/// Innermost first: launchers start each other (mpirun starts its daemons with srun, either starts torchrun), and a process
/// inherits the variables of the outer launchers, which describe the daemon.
const CONVENTIONS: [Convention; 5] = [
    Convention {
        launcher: Launcher::Torchrun,
        marker: Some("TORCHELASTIC_RUN_ID"),
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: &["LOCAL_RANK"],
        is_strict: true,
    },
    Convention {
        launcher: Launcher::OpenMpi,
        marker: None,
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        is_strict: true,
    },
    Convention {
        launcher: Launcher::Mpich,
        marker: None,
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        is_strict: true,
    },
    Convention {
        launcher: Launcher::Env,
        marker: None,
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: &["LOCAL_RANK"],
        is_strict: false,
    },
    SLURM,
];

impl Identity {
    /// A process without a launcher.
    pub const ALONE: Self = Self { rank: 0, world_size: 1, local_rank: Some(0), launcher: Launcher::None };

    /// Reads the place of this process from its environment; `env` looks up a variable. An empty variable counts as unset.
    ///
    /// Known launchers are Open MPI, MPICH's relatives (PMI), SLURM's steps, torchrun, and plain `RANK` and `WORLD_SIZE`.
    /// Without any of their variables the process is [`Identity::ALONE`].
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let env = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        for convention in &CONVENTIONS {
            if let Some(identity) = convention.read(&env)? {
                return if identity.launcher == Launcher::Mpich { srun_or_mpich(identity, &env) } else { Ok(identity) };
            }
        }
        Ok(Self::ALONE)
    }
}

/// srun also sets PMI's variables (`--mpi=pmi2`); then its own variables agree, and Hydra's are absent.
fn srun_or_mpich(pmi: Identity, env: &dyn Fn(&str) -> Option<String>) -> Result<Identity, Error> {
    if env("MPI_LOCALRANKID").is_some() {
        return Ok(pmi);
    }
    let step = SLURM.read(env)?;
    Ok(step.filter(|step| (step.rank, step.world_size) == (pmi.rank, pmi.world_size)).unwrap_or(pmi))
}

impl Convention {
    /// The place from this launcher's variables; `None` if they are absent.
    fn read(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Identity>, Error> {
        let Self { launcher, marker, rank, world_size, local_rank, is_strict } = *self;
        if marker.is_some_and(|marker| env(marker).is_none()) {
            return Ok(None);
        }
        let (rank_text, size_text) = match (env(rank), env(world_size)) {
            (Some(rank), Some(size)) => (rank, size),
            (Some(_), None) if is_strict => {
                return Err(Error::Incomplete { launcher, present: rank, missing: world_size });
            }
            (None, Some(_)) if is_strict => {
                return Err(Error::Incomplete { launcher, present: world_size, missing: rank });
            }
            _ => return Ok(None),
        };
        let size = self.number(world_size, &size_text, 1, i32::MAX)?;
        let local = match local_rank.iter().find_map(|&name| Some((name, env(name)?))) {
            Some((name, text)) => Some(self.number(name, &text, 0, size - 1)?),
            None => None,
        };
        Ok(Some(Identity {
            rank: self.number(rank, &rank_text, 0, size - 1)?,
            world_size: size,
            local_rank: local,
            launcher,
        }))
    }

    fn number(&self, variable: &'static str, value: &str, least: i32, most: i32) -> Result<i32, Error> {
        match value.trim().parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(Error::Unreadable {
                launcher: self.launcher,
                variable,
                value: value.to_owned(),
                expected: format!("a number from {least} to {most}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Identity, Error> {
        Identity::from_env(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[track_caller]
    fn check(variables: &[(&str, &str)], launcher: &str, rank: i32, world_size: i32, local_rank: Option<i32>) {
        let identity = read(variables).unwrap();
        assert_eq!(
            (identity.launcher.as_str(), identity.rank, identity.world_size, identity.local_rank),
            (launcher, rank, world_size, local_rank)
        );
    }

    /// The environment of Open MPI 4.1.4.
    const OPEN_MPI: [(&str, &str); 6] = [
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_UNIVERSE_SIZE", "8"),
        ("PMIX_RANK", "5"),
    ];
    /// The environment of Hydra.
    const HYDRA: [(&str, &str); 5] =
        [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("PMI_FD", "8"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    /// A task of a step that srun started.
    const STEP: [(&str, &str); 6] = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "16"),
        ("SLURM_PROCID", "9"),
        ("SLURM_LOCALID", "1"),
    ];
    const TORCHRUN: [(&str, &str); 7] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];

    #[test]
    fn each_launcher_is_recognized_by_its_variables() {
        check(&[], "none", 0, 1, Some(0));
        check(&OPEN_MPI, "openmpi", 5, 8, Some(1));
        check(&HYDRA, "mpich", 2, 4, Some(0));
        check(&STEP, "slurm", 9, 16, Some(1));
        check(&TORCHRUN, "torchrun", 3, 4, Some(1));
        check(&TORCHRUN[..2], "env", 3, 4, None);
        check(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_LOCAL_RANK", "1")], "mpich", 1, 2, Some(1));
    }

    #[test]
    fn the_innermost_launcher_counts() {
        // mpirun and mpiexec start one daemon per node with srun; its SLURM_PROCID is the node's, not the rank's.
        check(&[&OPEN_MPI[..], &STEP].concat(), "openmpi", 5, 8, Some(1));
        check(&[&HYDRA[..], &STEP].concat(), "mpich", 2, 4, Some(0));
        // torchrun, once per node, by srun or by mpirun.
        check(&[&TORCHRUN[..], &STEP].concat(), "torchrun", 3, 4, Some(1));
        check(&[&TORCHRUN[..], &OPEN_MPI].concat(), "torchrun", 3, 4, Some(1));
        // Scripts for PyTorch under mpirun often set RANK themselves.
        check(&[&[("RANK", "5"), ("WORLD_SIZE", "8")], &OPEN_MPI[..]].concat(), "openmpi", 5, 8, Some(1));
    }

    #[test]
    fn srun_with_pmi_is_srun() {
        check(&[&[("PMI_RANK", "9"), ("PMI_SIZE", "16")], &STEP[..]].concat(), "slurm", 9, 16, Some(1));
        check(&[&[("PMI_RANK", "3"), ("PMI_SIZE", "4")], &STEP[..]].concat(), "mpich", 3, 4, None);
    }

    #[test]
    fn a_batch_script_or_a_stray_variable_is_not_a_launcher() {
        check(&[("SLURM_JOB_ID", "77"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")], "none", 0, 1, Some(0));
        check(&[("RANK", "colonel")], "none", 0, 1, Some(0));
        check(&[("WORLD_SIZE", "8")], "none", 0, 1, Some(0));
        check(&[("OMPI_COMM_WORLD_RANK", ""), ("OMPI_COMM_WORLD_SIZE", " ")], "none", 0, 1, Some(0));
        check(&[("RANK", " 1 "), ("WORLD_SIZE", "2\n")], "env", 1, 2, None);
    }

    #[track_caller]
    fn check_error(variables: &[(&str, &str)], message: &str) {
        assert_eq!(read(variables).unwrap_err().to_string(), message);
    }

    #[test]
    fn errors_name_the_variable() {
        check_error(
            &[("OMPI_COMM_WORLD_RANK", "3")],
            "OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not: \
             unset OMPI_COMM_WORLD_RANK, or start all ranks with Open MPI's mpirun",
        );
        check_error(
            &[("PMI_SIZE", "3")],
            "PMI_SIZE is set but PMI_RANK is not: unset PMI_SIZE, or start all ranks with MPICH's mpiexec",
        );
        check_error(
            &[("PMI_RANK", "x"), ("PMI_SIZE", "4")],
            "PMI_RANK is `x`, which is not a number from 0 to 3: \
             unset it, or start all ranks with MPICH's mpiexec",
        );
        check_error(
            &[("RANK", "4"), ("WORLD_SIZE", "4")],
            "RANK is `4`, which is not a number from 0 to 3: unset it, or start all ranks with mpirun",
        );
        check_error(
            &[("RANK", "0"), ("WORLD_SIZE", "0")],
            "WORLD_SIZE is `0`, which is not a number from 1 to 2147483647: \
             unset it, or start all ranks with mpirun",
        );
        check_error(
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "-1")],
            "LOCAL_RANK is `-1`, which is not a number from 0 to 1: unset it, or start all ranks with mpirun",
        );
    }
}
