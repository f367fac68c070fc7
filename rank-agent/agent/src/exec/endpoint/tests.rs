//! Tests of the socket, its peers, and the removal of old files.

use super::*;

fn status() -> Status {
    Status {
        run: "/runs/a".into(),
        run_id: "id".into(),
        rank: 0,
        world_size: 1,
        pid: 1,
        recording: true,
        nccl_detail: "coll".into(),
        running_s: Some(1.5),
        off_s: 0.0,
        switches_in_s: None,
    }
}

fn start(directory: &Path) -> (Endpoint, PathBuf) {
    let stem = stem(directory);
    let answer = |request| match request {
        Request::Status {} => Answer::Status(status()),
        other => Answer::Error(format!("{other:?}")),
    };
    let endpoint = Endpoint::start(&stem, answer).unwrap();
    (endpoint, stem.with_extension("sock"))
}

/// A directory like the first candidate.
fn private() -> (tempfile::TempDir, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    let directory = own_directory(&[base.path().join("rankscope")]).unwrap();
    (base, directory)
}

#[test]
fn requests_are_answered_and_no_file_stays() {
    let (_base, directory) = private();
    let (endpoint, socket) = start(&directory);
    assert_eq!(std::fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert_eq!(sockets(std::slice::from_ref(&directory)).unwrap(), std::slice::from_ref(&socket));
    assert_eq!(ask(&socket, &Request::Status {}).unwrap(), Answer::Status(status()));
    let request = Request::Start { nccl_detail: Some("proxy".into()), duration_s: Some(2.5) };
    let Answer::Error(message) = ask(&socket, &request).unwrap() else { unreachable!("it is an error") };
    assert!(message.contains("2.5") && message.contains("proxy"), "{message}");
    drop(endpoint);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

/// Invariant (recorder): A malformed request of `ctl` is refused, and the next one is served.
#[test]
fn malformed_requests_are_refused_and_the_next_is_served() {
    let (_base, directory) = private();
    let (_endpoint, socket) = start(&directory);
    let noises: [&[u8]; 6] = [
        b"",
        b"\n",
        b"{\"command\":\"format\"}\n",
        b"{\"command\":\"stop\",\"more\":1}\n",
        &[0xff; 100],
        &[b'x'; 1 << 20],
    ];
    for noise in noises {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The endpoint closes the connection on too long a request.
        let _ = stream.write_all(noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.contains("not a request"), "{answer}");
    }
    // A silent client delays the others only for its own time limit.
    let silent = UnixStream::connect(&socket).unwrap();
    assert_eq!(ask(&socket, &Request::Status {}).unwrap(), Answer::Status(status()));
    drop(silent);
}

#[test]
fn files_of_a_killed_process_are_removed() {
    let (_base, directory) = private();
    let stem = stem(&directory);
    let socket = stem.with_extension("sock");
    drop(UnixListener::bind(&socket).unwrap());
    std::fs::write(stem.with_extension("page"), "").unwrap();
    assert_eq!(sockets(std::slice::from_ref(&directory)).unwrap(), [""; 0].map(PathBuf::from));
    assert!(socket.exists(), "a new socket is kept");
    let old = SystemTime::now() - 2 * STALE_AFTER;
    let touched = std::process::Command::new("touch")
        .arg("-d")
        .arg(format!("@{}", old.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()))
        .arg(&socket)
        .status()
        .unwrap();
    assert!(touched.success());
    assert_eq!(sockets(std::slice::from_ref(&directory)).unwrap(), [""; 0].map(PathBuf::from));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "socket and page");
}

/// Invariant (recorder): Only the user who runs the program can switch its recording.
#[test]
fn a_directory_that_other_users_can_access_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let open = base.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    let link = base.path().join("link");
    std::os::unix::fs::symlink(base.path().join("private"), &link).unwrap();
    std::fs::create_dir(base.path().join("private")).unwrap();
    let file = base.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (bad, why) in [(open, "mode 755"), (link, "not a directory"), (file, "not a directory")] {
        assert!(own_directory(std::slice::from_ref(&bad)).unwrap_err().contains(why), "{}", bad.display());
        assert_eq!(sockets(&[bad]).unwrap(), [""; 0].map(PathBuf::from));
    }
}

/// Invariant (recorder): A name that another user has taken costs nothing.
#[test]
fn a_directory_of_another_user_is_passed_and_the_own_one_is_found_again() {
    let shared = tempfile::tempdir().unwrap();
    let [taken] = in_shared(shared.path()).try_into().unwrap();
    // What another user has there is as little of use as a file.
    std::fs::write(&taken, "").unwrap();
    let home = home_in(&in_shared(shared.path()), shared.path()).unwrap();
    assert!(home.is_dir() && home != taken);
    assert_eq!(in_shared(shared.path()), [taken, home.clone()]);
    assert_eq!(home_in(&in_shared(shared.path()), shared.path()).unwrap(), home);
}
