//! Tests with ranks as threads that connect over the loopback.

use std::sync::Arc;

use super::*;
use recorder::Clock;

/// A free port of the loopback. Another program may take it before it is used; the tests that need one try again.
fn meeting() -> Meeting {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    Meeting { host: "127.0.0.1".into(), port, is_local: false, job: "test".into(), source: "a test" }
}

/// A meeting of the ranks of this host. No other test has its name.
fn local_meeting() -> Meeting {
    let unique = u64::from_le_bytes(random().unwrap());
    Meeting { is_local: true, job: format!("test {unique}"), port: 1, ..meeting() }
}

fn limits() -> Limits {
    Limits { join: Duration::from_secs(20), answer: Duration::from_secs(20) }
}

/// Runs `body` on ranks that are threads connected over TCP.
fn run<R: Send>(size: usize, body: impl Fn(Arc<Sockets>) -> R + Sync) -> Vec<R> {
    run_at(&meeting(), size, body)
}

fn run_at<R: Send>(meeting: &Meeting, size: usize, body: impl Fn(Arc<Sockets>) -> R + Sync) -> Vec<R> {
    let token = Token::new("secret");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (token, body) = (&token, &body);
                scope.spawn(move || {
                    let place = Place { rank, size };
                    body(Arc::new(Sockets::join(place, meeting, token, limits(), Stop::default()).unwrap()))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_gather_and_broadcast() {
    let all = run(5, |fabric| {
        let rank = fabric.rank();
        fabric.barrier().unwrap();
        assert_eq!(fabric.broadcast(vec![rank as u8; 3]).unwrap(), [0; 3]);
        fabric.all_gather(Lane::Control, &[rank as u64, 9]).unwrap()
    });
    assert_eq!(all, vec![vec![0, 9, 1, 9, 2, 9, 3, 9, 4, 9]; 5]);
}

#[test]
fn pings_measure_a_shifted_clock() {
    const AHEAD_NS: i64 = 1_000_000_000;
    let clock = |rank| if rank == 2 { Clock::bent(AHEAD_NS, 0) } else { Clock::system() };
    let pings = |fabric: Arc<Sockets>| {
        let rows = PingTree::new(4, 1).burst(&*fabric, clock(fabric.rank())).unwrap();
        (fabric.rank(), fabric.version(), rows)
    };
    let over_tcp = run(4, pings);
    assert!(over_tcp.iter().all(|(_, version, _)| version == "tcp"));
    let here = run_at(&local_meeting(), 4, pings);
    assert!(here.iter().all(|(_, version, _)| version == "unix"), "ranks of one host need no port");
    for (rank, _, rows) in over_tcp.into_iter().chain(here) {
        let pings: Vec<_> = rows.iter().filter(|row| &*row.kind == "ping").collect();
        assert_eq!(pings.is_empty(), rank == 0);
        let ahead_ns = if rank == 2 { AHEAD_NS } else { 0 };
        for row in pings {
            assert!((row.offset_ns + ahead_ns).abs() <= row.rtt_ns / 2 + 1, "{row:?}");
        }
    }
}

/// Invariant (recorder): Only ranks of the job can join it.
#[test]
fn a_peer_without_the_token_is_refused() {
    let meeting = meeting();
    let join = |rank, token: &str, patience_ms| {
        let limits = Limits { join: Duration::from_millis(patience_ms), ..limits() };
        Sockets::join(Place { rank, size: 2 }, &meeting, &Token::new(token), limits, Stop::default())
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| join(0, "secret", 5000));
        let refused = join(1, "guess", 20_000).unwrap_err();
        assert!(matches!(refused, Error::WrongPeer(_)), "{refused}");
        let alone = first.join().unwrap().unwrap();
        let absent = alone.absent().unwrap().to_string();
        assert!(
            absent.contains("rank 1 did not connect to 127.0.0.1") && absent.contains("RANKSCOPE_TOKEN"),
            "{absent}"
        );
        assert_eq!((alone.size(), alone.all_gather(Lane::Control, &[7]).unwrap()), (1, vec![7]));
    });
}

/// Invariant (recorder): A rank that does not come stops no job, and the run names the ranks whose clocks were not
/// compared.
///
/// Ranks 0, 2 and 3 of four: their clocks are compared, under their ranks in the job.
#[test]
fn ranks_that_have_met_go_on_without_the_others() {
    let (meeting, token) = (meeting(), Token::new("secret"));
    let limits = Limits { join: Duration::from_secs(2), ..limits() };
    let rows: Vec<_> = std::thread::scope(|scope| {
        let (meeting, token) = (&meeting, &token);
        let ranks = [0, 2, 3].map(|rank| {
            scope.spawn(move || {
                let fabric = Sockets::join(Place { rank, size: 4 }, meeting, token, limits, Stop::default()).unwrap();
                assert_eq!((fabric.size(), fabric.rank_in_job(fabric.rank())), (3, rank));
                let absent = fabric.absent().map(ToString::to_string);
                assert_eq!(absent.is_some(), rank == 0);
                assert!(
                    absent.is_none_or(|why| why.starts_with("rank 1 did not connect") && why.contains("within 2 s"))
                );
                PingTree::new(3, 1).burst(&fabric, Clock::system()).unwrap()
            })
        });
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    });
    let pairs: std::collections::BTreeSet<_> = rows.iter().map(|row| (row.rank, row.peer_rank)).collect();
    assert_eq!(pairs.into_iter().filter(|(_, peer)| peer.is_some()).collect::<Vec<_>>(), [(2, Some(0)), (3, Some(0))]);
}

/// Another user may take the name of a socket, and does not listen there.
///
/// Invariant (recorder): Only ranks of the job can join it.
#[test]
fn ranks_pass_a_name_that_is_taken() {
    let meeting = local_meeting();
    let names = Names::new(&meeting.job, meeting.port, 0);
    let _taken = names.take(0).unwrap();
    let sizes = run_at(&meeting, 3, |fabric| {
        fabric.barrier().unwrap();
        fabric.size()
    });
    assert_eq!(sizes, [3; 3]);
    let _all: Vec<_> = (1..stream::NAMES).map(|number| names.take(number).unwrap()).collect();
    let limits = Limits { join: Duration::from_millis(100), ..limits() };
    for rank in [0, 1] {
        let place = Place { rank, size: 2 };
        let error = Sockets::join(place, &meeting, &Token::new("secret"), limits, Stop::default()).unwrap_err();
        assert!(matches!(error, Error::Network { .. }), "{error}");
    }
}

#[test]
fn a_roster_that_cannot_be_the_jobs_is_refused() {
    let roster = |ranks: &[u64]| {
        let bytes: Vec<u8> = ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        members_of(&bytes, Place { rank: 2, size: 4 })
    };
    assert_eq!(roster(&[0, 2]), Some(vec![0, 2]));
    for ranks in [&[][..], &[0], &[2], &[0, 3], &[0, 2, 2], &[0, 2, 1], &[0, 2, 4], &[0, 2, u64::MAX]] {
        assert_eq!(roster(ranks), None, "{ranks:?}");
    }
    assert_eq!(members_of(&[0; 9], Place { rank: 0, size: 4 }), None);
}

/// Invariant (recorder): Only ranks of the job can join it.
#[test]
fn a_foreign_connection_does_not_keep_ranks_out() {
    let (meeting, token) = (meeting(), Token::new("secret"));
    std::thread::scope(|scope| {
        let join = |rank| Sockets::join(Place { rank, size: 2 }, &meeting, &token, limits(), Stop::default());
        let first = scope.spawn(move || join(0));
        let until = Instant::now() + Duration::from_secs(10);
        let mut noise = loop {
            match TcpStream::connect(("127.0.0.1", meeting.port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        std::io::Write::write_all(&mut noise, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let second = join(1).unwrap();
        assert_eq!((first.join().unwrap().unwrap().size(), second.size()), (2, 2));
    });
}

#[test]
fn silent_connections_do_not_keep_ranks_out() {
    let (meeting, token) = (meeting(), Token::new("secret"));
    std::thread::scope(|scope| {
        let join = |rank| Sockets::join(Place { rank, size: 2 }, &meeting, &token, limits(), Stop::default());
        let first = scope.spawn(move || join(0));
        let until = Instant::now() + Duration::from_secs(10);
        let mut silent = Vec::new();
        while silent.len() < 40 {
            match TcpStream::connect(("127.0.0.1", meeting.port)) {
                Ok(stream) => silent.push(stream),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
        let second = join(1).unwrap();
        assert_eq!((first.join().unwrap().unwrap().size(), second.size()), (2, 2));
    });
}

/// New connections come all the time, so that the listener never has none to accept.
#[test]
fn the_deadline_and_a_stop_hold_under_noise() {
    for stops in [false, true] {
        let (meeting, token, stop) = (meeting(), Token::new("secret"), Stop::default());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut silent = Vec::new();
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    silent.extend(TcpStream::connect(("127.0.0.1", meeting.port)));
                    silent.truncate(200);
                }
            });
            let join = Duration::from_millis(if stops { 60_000 } else { 300 });
            let limits = Limits { join, ..limits() };
            let (meeting, token) = (&meeting, &token);
            let of_rank = stop.clone();
            let rank = scope.spawn(move || Sockets::join(Place { rank: 0, size: 2 }, meeting, token, limits, of_rank));
            if stops {
                std::thread::sleep(Duration::from_millis(200));
                stop.abandon();
            }
            let joined = rank.join().unwrap();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            match joined {
                Ok(alone) => assert!(!stops && matches!(alone.absent(), Some(Error::Missing { .. }))),
                Err(error) => assert!(stops, "{error}"),
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_causes_an_error_at_once() {
    let results = run(3, |fabric| if fabric.rank() == 2 { Ok(()) } else { fabric.barrier() });
    assert!(results[2].is_ok());
    for result in &results[..2] {
        assert!(matches!(result, Err(Error::Network { .. })), "{result:?}");
    }
}

#[test]
fn joined_frames_are_split_again() {
    let all = vec![vec![1, 2], Vec::new(), vec![3]];
    let joined = frames_joined(&all);
    assert_eq!(frames_split(&joined, 3), Some(all));
    assert_eq!(frames_split(&joined, 2), None);
    for cut in 1..joined.len() {
        let split = frames_split(&joined[..cut], 3);
        assert_eq!(split, None, "cut at {cut}");
    }
    let huge = [&u64::MAX.to_le_bytes()[..], &[1]].concat();
    assert_eq!(frames_split(&huge, 1), None);
}

#[test]
fn addresses_convert_to_words_and_back() {
    for ip in ["127.0.0.1", "10.1.2.3", "::1", "fe80::1", "0.0.0.0"] {
        let ip: IpAddr = ip.parse().unwrap();
        assert_eq!(ip_of(ip_words(ip)), ip);
    }
}
