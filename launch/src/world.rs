//! Compares the rank from MPI with the rank from the launcher.

use crate::{Error, Identity, Launcher};

/// The place of this process according to the MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World<'a> {
    /// Rank in `MPI_COMM_WORLD`.
    pub rank: i32,
    /// The size of `MPI_COMM_WORLD`.
    pub size: i32,
    /// `MPI_Get_library_version`; errors show its first line.
    pub library: &'a str,
}

/// Compares the launcher's rank with MPI's, and returns the place that both agree on.
///
/// Without a known launcher MPI's rank counts, because MPI may know launchers that this crate does not.
pub fn check_world(identity: &Identity, world: &World<'_>) -> Result<Identity, Error> {
    let Identity { rank, world_size, launcher, .. } = *identity;
    if (rank, world_size) == (world.rank, world.size) {
        return Ok(*identity);
    }
    if launcher == Launcher::None {
        return Ok(Identity { rank: world.rank, world_size: world.size, local_rank: None, launcher });
    }
    let library = short_name(world.library);
    Err(Error::WorldMismatch {
        launcher,
        rank,
        world_size,
        mpi_rank: world.rank,
        mpi_size: world.size,
        advice: advice(launcher, world_size, &library),
        library,
    })
}

/// `Open MPI v4.1.4` of `Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: …`, and
/// `MPICH Version: 4.0.2` of MPICH's several lines, which are padded with blanks.
fn short_name(library: &str) -> String {
    let line = library.split(['\n', ',', '\0']).next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.is_empty() { "unknown".to_owned() } else { words.join(" ") }
}

fn advice(launcher: Launcher, world_size: i32, library: &str) -> String {
    match launcher {
        Launcher::OpenMpi => format!(
            "start it with the mpirun that belongs to {library}, or build it against Open MPI \
             (MPICC=/path/to/openmpi/bin/mpicc cargo build)"
        ),
        Launcher::Mpich => format!(
            "start it with the mpirun that belongs to {library}, or build it against MPICH \
             (MPICC=/path/to/mpich/bin/mpicc cargo build)"
        ),
        Launcher::Slurm => format!(
            "give srun the protocol of {library}: --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH; \
             `srun --mpi=list` lists the available ones"
        ),
        Launcher::Torchrun | Launcher::Env | Launcher::None => format!(
            "the ranks talk to each other through MPI, so start them with mpirun -n {world_size}, \
             and unset RANK and WORLD_SIZE"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: &str = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022\0";
    const MPICH: &str = "MPICH Version:      4.0.2\nMPICH Release date: Thu Apr  7 12:34:45 CDT 2022\n";

    fn identity(launcher: Launcher, rank: i32, world_size: i32) -> Identity {
        Identity { rank, world_size, local_rank: Some(rank), launcher }
    }

    #[test]
    fn agreement_keeps_the_local_rank() {
        let launched = identity(Launcher::OpenMpi, 3, 8);
        let world = World { rank: 3, size: 8, library: OPEN_MPI };
        assert_eq!(check_world(&launched, &world), Ok(launched));
        let world = World { rank: 0, size: 1, library: OPEN_MPI };
        assert_eq!(check_world(&Identity::ALONE, &world), Ok(Identity::ALONE));
    }

    #[test]
    fn without_a_known_launcher_mpi_counts() {
        let found = check_world(&Identity::ALONE, &World { rank: 2, size: 4, library: MPICH }).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (2, 4, None));
    }

    #[track_caller]
    fn check(launched: Identity, rank: i32, size: i32, library: &str, message: &str) {
        let error = check_world(&launched, &World { rank, size, library }).unwrap_err();
        assert_eq!(error.to_string(), message);
    }

    /// Invariant (recorder): The launcher of another MPI is refused.
    #[test]
    fn the_launcher_of_another_mpi_is_refused() {
        check(
            identity(Launcher::OpenMpi, 3, 8),
            0,
            1,
            MPICH,
            "the launcher of Open MPI started this process as rank 3 of 8, but the MPI library it is linked with \
             (MPICH Version: 4.0.2) reports rank 0 of 1; start it with the mpirun that belongs to \
             MPICH Version: 4.0.2, or build it against Open MPI \
             (MPICC=/path/to/openmpi/bin/mpicc cargo build)",
        );
        check(
            identity(Launcher::Mpich, 0, 4),
            0,
            1,
            OPEN_MPI,
            "the launcher of MPICH or a relative of it (PMI) started this process as rank 0 of 4, but the MPI \
             library it is linked with (Open MPI v4.1.4) reports rank 0 of 1; start it with the mpirun that \
             belongs to Open MPI v4.1.4, or build it against MPICH (MPICC=/path/to/mpich/bin/mpicc cargo build)",
        );
    }

    #[test]
    fn every_disagreement_is_refused_with_its_own_advice() {
        let cases = [
            (identity(Launcher::Slurm, 1, 8), World { rank: 0, size: 1, library: OPEN_MPI }, "--mpi=pmix"),
            (identity(Launcher::Torchrun, 1, 4), World { rank: 0, size: 1, library: OPEN_MPI }, "mpirun -n 4"),
            (identity(Launcher::OpenMpi, 1, 4), World { rank: 2, size: 4, library: OPEN_MPI }, "rank 2 of 4"),
            (identity(Launcher::OpenMpi, 0, 1), World { rank: 0, size: 4, library: "" }, "(unknown)"),
        ];
        for (launched, world, part) in cases {
            let message = check_world(&launched, &world).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
