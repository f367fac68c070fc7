//! The known launchers, and their names.

/// The launcher of a job's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's mpiexec and its descendants: Hydra, Intel MPI, MVAPICH, Cray's PMI.
    Mpich,
    /// SLURM's srun.
    Slurm,
    /// PyTorch's torchrun.
    Torchrun,
    /// `RANK` and `WORLD_SIZE`, set by hand or by a job controller such as Kubernetes' PyTorchJob.
    Env,
    /// No launcher.
    None,
}

impl Launcher {
    /// Its name in the tables of a run.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Slurm => "slurm",
            Self::Torchrun => "torchrun",
            Self::Env => "env",
            Self::None => "none",
        }
    }

    /// Whether it starts jobs of MPI.
    pub fn starts_mpi(self) -> bool {
        matches!(self, Self::OpenMpi | Self::Mpich | Self::Slurm)
    }

    /// Its name as the subject of a sentence.
    pub fn described(self) -> &'static str {
        match self {
            Self::OpenMpi => "the launcher of Open MPI",
            Self::Mpich => "the launcher of MPICH or a relative of it (PMI)",
            Self::Slurm => "srun",
            Self::Torchrun => "torchrun",
            Self::Env => "the environment (RANK, WORLD_SIZE)",
            Self::None => "no known launcher",
        }
    }

    /// The command that starts ranks with it.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Mpich => "MPICH's mpiexec",
            Self::Slurm => "srun",
            Self::Torchrun => "torchrun",
            Self::Env | Self::None => "mpirun",
        }
    }
}
