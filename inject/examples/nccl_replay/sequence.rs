//! The order in which NCCL 2.26 to 2.32 calls its profiler plugin, from several threads, and a hang.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::abi::{Coll, Descriptor, kind};
use crate::ffi::{Comm, Plugin};
use crate::gpu_ns;

/// Elements of the k-th collective.
pub(crate) fn count(k: u64) -> usize {
    1000 + k as usize
}

/// Hash of the n-th communicator: above 2^63, as many are.
pub(crate) fn hash(n: u64) -> u64 {
    0xfeed_beef_0000_0000 | n
}

const CHANNELS: u8 = 4;

/// What the proxy thread is told to run, one after the other as on one stream.
struct Job {
    operation: usize,
    channels: u8,
    /// Never ends.
    hangs: bool,
}

/// One communicator of this process.
pub(crate) struct World<'p> {
    pub(crate) plugin: &'p Plugin,
    pub(crate) version: u8,
    pub(crate) context: usize,
    pub(crate) hash: u64,
}

impl<'p> World<'p> {
    pub(crate) fn new(plugin: &'p Plugin, version: u8, number: u64, rank: i32, ranks: i32) -> Self {
        let world = Self::open(plugin, version, number, rank, ranks);
        assert!(crate::ffi::mask() != 0, "the plugin wants to be told something");
        world
    }

    /// Whether or not the plugin wants anything now.
    fn open(plugin: &'p Plugin, version: u8, number: u64, rank: i32, ranks: i32) -> Self {
        let name = format!("dp_group_{number}");
        let comm = Comm { name: &name, hash: hash(number), nodes: 2, ranks, rank };
        let context = plugin.init(&comm);
        assert!(context != 0, "the plugin takes the communicator");
        Self { plugin, version, context, hash: hash(number) }
    }

    fn start(&self, descriptor: &Descriptor) -> usize {
        self.plugin.start(self.context, descriptor.bytes())
    }

    /// One API call with its group: from v5 on NCCL tells of both. Returns the handles of group and call.
    fn call(&self, func: &'static CStr, count: usize, is_p2p: bool) -> (usize, usize) {
        if self.version < 5 {
            return (0, 0);
        }
        let group = self.start(&Descriptor::new(self.version, kind::GROUP_API, 0));
        self.plugin.record_state(group, 23, None);
        let call = self.start(&match is_p2p {
            true => Descriptor::p2p_api(self.version, group, func, count),
            false => Descriptor::coll_api(self.version, group, func, count, c"ncclFloat32"),
        });
        self.plugin.stop(call);
        self.plugin.record_state(group, 24, None);
        (group, call)
    }

    /// A collective as the user's thread sees it: enqueued and launched, no more.
    fn enqueue(&self, k: u64) -> Job {
        let func = if k % 4 == 3 { c"AllGather" } else { c"AllReduce" };
        // Per function, as NCCL counts.
        let seq = if k % 4 == 3 { k / 4 } else { k - k.div_ceil(4).min(k / 4) };
        let (group_api, call) = self.call(func, count(k), false);
        self.launch(group_api);
        let group = self.start(&Descriptor::new(self.version, kind::GROUP, 0));
        // NCCL rewrites an AllGather to bytes; the call keeps the user's type.
        let (elements, datatype) = match func == c"AllGather" {
            true => (4 * count(k), c"ncclInt8"),
            false => (count(k), c"ncclFloat32"),
        };
        let coll = Coll {
            comm_hash: self.hash,
            seq,
            func,
            count: elements,
            root: 0,
            datatype,
            channels: CHANNELS,
            algo: c"RING",
            proto: c"LL128",
        };
        let parent = if self.version < 5 { group } else { call };
        let operation = self.start(&Descriptor::coll(self.version, parent, group, coll));
        self.plugin.stop(operation);
        self.plugin.stop(group);
        if group_api != 0 {
            self.plugin.stop(group_api);
        }
        Job { operation, channels: CHANNELS, hangs: false }
    }

    fn launch(&self, group_api: usize) {
        if self.version >= 5 {
            let launch = self.start(&Descriptor::new(self.version, kind::KERNEL_LAUNCH, group_api));
            self.plugin.stop(launch);
        }
    }

    /// A send and a receive in one group; they use 2 of the 8 channels that they announce.
    fn exchange(&self, peer: i32) -> [Job; 2] {
        [c"Send", c"Recv"].map(|func| {
            let (group_api, call) = self.call(func, 256, true);
            self.launch(group_api);
            let operation = self.start(&Descriptor::p2p(self.version, call, self.hash, func, 256, peer));
            self.plugin.stop(operation);
            if group_api != 0 {
                self.plugin.stop(group_api);
            }
            Job { operation, channels: 2, hangs: false }
        })
    }

    /// What the proxy thread tells later: channels, and their work over the network.
    fn progress(&self, job: &Job) {
        let (pid, start_gpu) = (std::process::id() as i32, gpu_ns());
        let started: Vec<(usize, Option<usize>)> = (0..job.channels)
            .map(|channel| {
                let stamp = start_gpu + u64::from(channel);
                let handle = self.start(&Descriptor::kernel_ch(self.version, job.operation, channel, stamp));
                let phase = (self.version >= 7 && channel == 0)
                    .then(|| self.start(&Descriptor::kernel_phase(handle, channel, stamp)));
                (handle, phase)
            })
            .collect();
        if job.hangs {
            return;
        }
        let proxy = self.start(&Descriptor::proxy_op(self.version, job.operation, pid, 0, true));
        if proxy != 0 {
            if self.version >= 4 {
                self.plugin.record_state(proxy, 19, None);
            }
            for step in 0..2 {
                let step = self.start(&Descriptor::proxy_step(self.version, proxy, step));
                self.plugin.record_state(step, 8, None);
                if self.version >= 4 {
                    self.plugin.record_state(step, 20, None);
                }
                self.plugin.record_state(step, 9, Some(65_536));
                self.plugin.stop(step);
            }
            self.plugin.stop(proxy);
        }
        let end = gpu_ns() - 10;
        for (channel, (handle, phase)) in started.into_iter().enumerate() {
            if let Some(phase) = phase {
                self.plugin.record_state(phase, 31, Some(end));
                self.plugin.stop(phase);
            }
            if self.version >= 4 {
                self.plugin.record_state(handle, 22, Some(end + channel as u64));
            }
            self.plugin.stop(handle);
        }
    }

    /// One copy-engine collective (v6 and newer).
    fn copy_engine(&self, seq: u64) {
        let operation = self.start(&Descriptor::ce_coll(self.version, 0, seq));
        let sync = self.start(&Descriptor::new(self.version, kind::CE_SYNC, operation));
        self.plugin.stop(sync);
        let batch = self.start(&Descriptor::ce_batch(self.version, operation));
        self.plugin.stop(batch);
        self.plugin.stop(operation);
    }
}

/// `operations` collectives on each of two communicators, each with a user's thread and a proxy thread; then sends and
/// receives, and a copy engine's. Returns operations enqueued.
pub(crate) fn sequence(plugin: &Plugin, version: u8, rank: i32, ranks: i32, operations: u64) -> u64 {
    let enqueued = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for number in 1..=2 {
            let enqueued = &enqueued;
            threads.spawn(move || {
                let world = World::new(plugin, version, number, rank, ranks);
                std::thread::scope(|threads| {
                    let (jobs, queue) = mpsc::channel::<Job>();
                    let world = &world;
                    threads.spawn(move || queue.iter().for_each(|job| world.progress(&job)));
                    for k in 0..operations {
                        // As fast as a training step with many buckets: the recorder drops nothing at this rate.
                        std::thread::sleep(Duration::from_micros(200));
                        let _ = jobs.send(world.enqueue(k));
                        enqueued.fetch_add(1, Ordering::Relaxed);
                    }
                    for job in world.exchange((rank + 1) % ranks) {
                        let _ = jobs.send(job);
                        enqueued.fetch_add(1, Ordering::Relaxed);
                    }
                });
                if version >= 6 {
                    world.copy_engine(0);
                    enqueued.fetch_add(1, Ordering::Relaxed);
                }
                // Sends and receives are over when nothing more comes of the channels that they announced.
                std::thread::sleep(Duration::from_millis(1500));
                plugin.finalize(world.context);
            });
        }
    });
    enqueued.into_inner()
}

/// Collectives one after the other, told only while the plugin's mask asks for them, as NCCL does, until the mask has
/// gone from nothing to something or back `switches` times. Says each time what it is, and in the end how many collectives
/// were told, how many of them the plugin took, and the number of the last of these.
pub(crate) fn steady(plugin: &Plugin, version: u8, (rank, ranks): (i32, i32), switches: u64) {
    const PATIENCE: Duration = Duration::from_secs(60);
    let world = World::open(plugin, version, 1, rank, ranks);
    let (began, mut switched) = (std::time::Instant::now(), 0);
    let (mut told, mut taken, mut last_taken) = (0, 0, 0);
    let mut seen = None;
    while switched < switches && began.elapsed() < PATIENCE {
        let mask = crate::ffi::mask();
        if mask != 0 {
            let job = world.enqueue(told);
            world.progress(&job);
            told += 1;
            if job.operation != 0 {
                (taken, last_taken) = (taken + 1, told);
            }
        }
        // Said after the first collective under it: who reads it may switch it off at once.
        if seen != Some(mask) {
            println!("mask={mask}");
            switched += u64::from(seen.is_some_and(|before| (mask == 0) != (before == 0)));
            seen = Some(mask);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("told={told}\ntaken={taken}\nlast_taken={last_taken}");
    plugin.finalize(world.context);
    assert_eq!(switched, switches, "it was switched too few times");
}

/// Collectives of which the last is one that `missing` never calls: the others enter and wait until they are killed.
/// Ends only on rank `missing`, or when `patience` is over.
pub(crate) fn hang(plugin: &Plugin, version: u8, (rank, ranks, missing): (i32, i32, i32), patience: Duration) {
    let world = World::new(plugin, version, 1, rank, ranks);
    for k in 0..7 {
        let job = world.enqueue(k);
        world.progress(&job);
        std::thread::sleep(Duration::from_millis(20));
    }
    if rank != missing {
        // One that the host enqueued, and whose kernel runs for ever.
        let job = Job { hangs: true, ..world.enqueue(7) };
        if world.version >= 3 {
            world.progress(&job);
        }
        // And one behind it, which never begins.
        world.enqueue(8);
    }
    std::thread::sleep(patience);
}
