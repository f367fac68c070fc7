//! Offsets of the fields of NCCL's event descriptors for each version of the plugin interface, and their reading.
//!
//! Source: NCCL's headers `src/include/plugin/profiler/profiler_v3.h` … `profiler_v7.h`, x86-64 and aarch64 (LP64), and
//! for v7 the debug information of NVIDIA's own 2.31.2 and 2.32.3 builds.
//!
//! NCCL's adapters for older versions fill a descriptor on the stack without zeroing it. Therefore the type is read at its
//! exact width, and only the union member that the type selects is read; all other bytes, padding included, are garbage.

use std::ffi::{c_char, c_void};

use crate::nccl::record::{Api, Coll, Event, Launch, P2p, ProxyOp, event_type};
use crate::nccl::string_table::{MAX_BYTES, StringId, StringTable};

/// `type`, one byte in v3 and v4, eight from v5.
pub(crate) const TYPE: usize = 0;
/// `parentObj`.
pub(crate) const PARENT: usize = 8;
/// Offset of the union.
#[cfg(test)]
pub(crate) const UNION: usize = 24;

/// Offsets of a `coll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollAt {
    pub(crate) comm_hash: Option<usize>,
    pub(crate) seq: usize,
    pub(crate) func: usize,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) datatype: usize,
    pub(crate) channels: usize,
    pub(crate) algo: usize,
    pub(crate) proto: usize,
    pub(crate) parent_group: Option<usize>,
}

/// Offsets of a `p2p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct P2pAt {
    pub(crate) comm_hash: Option<usize>,
    pub(crate) func: usize,
    pub(crate) datatype: usize,
    pub(crate) count: usize,
    pub(crate) peer: usize,
    pub(crate) channels: Option<usize>,
    pub(crate) parent_group: Option<usize>,
}

/// Values that differ between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) version: u8,
    /// `sizeof` of the descriptor.
    pub(crate) size: usize,
    pub(crate) type_bytes: usize,
    pub(crate) coll: CollAt,
    pub(crate) p2p: P2pAt,
    /// `kernelCh.pTimer`.
    pub(crate) kernel_ch_timer: Option<usize>,
    /// Event types of the version, as a mask.
    pub(crate) types: u64,
}

const COLL_V3: CollAt = CollAt {
    comm_hash: Some(32),
    seq: 40,
    func: 48,
    count: 72,
    root: 80,
    datatype: 88,
    channels: 96,
    algo: 104,
    proto: 112,
    parent_group: None,
};
const COLL_V4: CollAt = CollAt {
    comm_hash: None,
    seq: 24,
    func: 32,
    count: 56,
    root: 64,
    datatype: 72,
    channels: 80,
    algo: 88,
    proto: 96,
    parent_group: None,
};
const P2P_V3: P2pAt =
    P2pAt { comm_hash: Some(32), func: 40, datatype: 56, count: 64, peer: 72, channels: None, parent_group: None };
const P2P_V4: P2pAt =
    P2pAt { comm_hash: None, func: 24, datatype: 40, count: 48, peer: 56, channels: Some(60), parent_group: None };

const V3: Layout =
    Layout { version: 3, size: 120, type_bytes: 1, coll: COLL_V3, p2p: P2P_V3, kernel_ch_timer: None, types: 0xff };
const V4: Layout = Layout { version: 4, size: 104, coll: COLL_V4, p2p: P2P_V4, kernel_ch_timer: Some(32), ..V3 };
const V5: Layout = Layout {
    version: 5,
    size: 112,
    type_bytes: 8,
    coll: CollAt { parent_group: Some(104), ..COLL_V4 },
    p2p: P2pAt { parent_group: Some(64), ..P2P_V4 },
    types: 0xfff,
    ..V4
};
const V6: Layout = Layout { version: 6, types: 0x7fff, ..V5 };
const V7: Layout = Layout { version: 7, size: 136, types: 0xffff, ..V6 };

/// The layout of an exported version; other versions have that of the newest.
pub(crate) const fn layout(version: u8) -> Layout {
    match version {
        3 => V3,
        4 => V4,
        5 => V5,
        6 => V6,
        _ => V7,
    }
}

/// Offsets of `groupApi`, `collApi`, …: equal in every version that has them.
pub(crate) mod at {
    pub(crate) const COLL_API: (usize, usize, usize, usize) = (24, 32, 40, 64);
    pub(crate) const COLL_API_ROOT: usize = 48;
    pub(crate) const P2P_API: (usize, usize, usize, usize) = (24, 32, 40, 56);
    pub(crate) const PROXY_PID: usize = 24;
    pub(crate) const PROXY_CHANNEL: usize = 28;
    pub(crate) const PROXY_PEER: usize = 32;
    pub(crate) const PROXY_STEPS: usize = 36;
    pub(crate) const PROXY_CHUNK: usize = 40;
    pub(crate) const PROXY_IS_SEND: usize = 44;
    pub(crate) const KERNEL_CH_CHANNEL: usize = 24;
    pub(crate) const CE_SEQ: usize = 24;
    pub(crate) const CE_FUNC: usize = 32;
    pub(crate) const CE_COUNT: usize = 56;
    pub(crate) const CE_ROOT: usize = 64;
    pub(crate) const CE_DATATYPE: usize = 72;
    pub(crate) const CE_BATCH_BYTES: usize = 32;
    pub(crate) const PHASE_CHANNEL: usize = 24;
    pub(crate) const PHASE_NAME: usize = 32;
    pub(crate) const PHASE_TIMER: usize = 40;
}

/// A descriptor of NCCL, valid during one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    bytes: *const u8,
    layout: Layout,
}

impl Descriptor {
    /// `None` for a null pointer.
    ///
    /// # Safety
    /// `bytes` is null or points to a descriptor of this version, alive as long as the value is used, whose strings are
    /// null or end with a zero byte.
    pub(crate) unsafe fn new(bytes: *const c_void, version: u8) -> Option<Self> {
        (!bytes.is_null()).then_some(Self { bytes: bytes.cast(), layout: layout(version) })
    }

    fn read<T: Copy>(&self, offset: usize) -> T {
        debug_assert!(offset + size_of::<T>() <= self.layout.size);
        // SAFETY: the descriptor is alive and has the size of its version (`new`); every offset above is that of a field
        // of type T inside it, as the test checks. Only integers and pointers are read, which have no invalid values.
        unsafe { self.bytes.add(offset).cast::<T>().read_unaligned() }
    }

    fn flag(&self, offset: usize) -> bool {
        self.read::<u8>(offset) != 0
    }

    fn string(&self, offset: usize, strings: &StringTable) -> StringId {
        let text = self.read::<*const c_char>(offset);
        if text.is_null() {
            return 0;
        }
        let mut buffer = [0_u8; MAX_BYTES];
        let mut length = 0;
        for byte in &mut buffer {
            // SAFETY: the string ends with a zero byte (`new`), and no byte after it is read.
            *byte = unsafe { text.add(length).cast::<u8>().read() };
            if *byte == 0 {
                break;
            }
            length += 1;
        }
        strings.intern(&buffer[..length])
    }

    /// The type's bit in the activation mask.
    pub(crate) fn event_type(&self) -> u64 {
        match self.layout.type_bytes {
            1 => u64::from(self.read::<u8>(TYPE)),
            _ => self.read::<u64>(TYPE),
        }
    }

    /// The handle of the parent, as NCCL holds it.
    pub(crate) fn parent(&self) -> u64 {
        self.read::<usize>(PARENT) as u64
    }

    /// Offset of `parentGroup`, if this descriptor has it.
    pub(crate) fn parent_group_at(&self) -> Option<usize> {
        match self.event_type() {
            event_type::COLL => self.layout.coll.parent_group,
            event_type::P2P => self.layout.p2p.parent_group,
            _ => None,
        }
    }

    /// `sizeof` of the descriptor.
    pub(crate) fn size(&self) -> usize {
        self.layout.size
    }

    /// Address of the descriptor.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes
    }

    /// The event of the descriptor; [`Event::Other`] for unknown types and types without rows.
    pub(crate) fn event(&self, strings: &StringTable) -> Event {
        let kind = self.event_type();
        if kind & self.layout.types == 0 {
            return Event::Other;
        }
        match kind {
            event_type::COLL => Event::Coll(self.coll(strings)),
            event_type::P2P => Event::P2p(self.p2p(strings)),
            event_type::COLL_API => {
                Event::CollApi(Api { root: self.read(at::COLL_API_ROOT), ..self.api(at::COLL_API, strings) })
            }
            event_type::P2P_API => Event::P2pApi(self.api(at::P2P_API, strings)),
            event_type::GROUP_API => Event::GroupApi(Launch::default()),
            event_type::KERNEL_LAUNCH => Event::KernelLaunch(Launch::default()),
            event_type::PROXY_OP => Event::ProxyOp(ProxyOp {
                pid: self.read(at::PROXY_PID),
                peer: self.read(at::PROXY_PEER),
                steps: self.read(at::PROXY_STEPS),
                chunk_bytes: self.read(at::PROXY_CHUNK),
                channel: self.read(at::PROXY_CHANNEL),
                is_send: self.read::<i32>(at::PROXY_IS_SEND) != 0,
            }),
            event_type::PROXY_STEP => Event::ProxyStep,
            event_type::KERNEL_CH => Event::KernelCh {
                channel: self.read(at::KERNEL_CH_CHANNEL),
                gpu_ns: self.layout.kernel_ch_timer.map_or(0, |timer| self.read(timer)),
            },
            event_type::KERNEL_PHASE => Event::KernelPhase {
                channel: self.read(at::PHASE_CHANNEL),
                name: self.string(at::PHASE_NAME, strings),
                gpu_ns: self.read(at::PHASE_TIMER),
            },
            event_type::CE_COLL => Event::CeColl(self.ce_coll(strings)),
            event_type::CE_SYNC => Event::CeSync,
            event_type::CE_BATCH => Event::CeBatch { bytes: self.read(at::CE_BATCH_BYTES) },
            _ => Event::Other,
        }
    }

    fn coll(&self, strings: &StringTable) -> Coll {
        let at = &self.layout.coll;
        Coll {
            comm_hash: at.comm_hash.map_or(0, |hash| self.read(hash)),
            seq: self.read(at.seq),
            count: self.read(at.count),
            root: self.read(at.root),
            func: self.string(at.func, strings),
            datatype: self.string(at.datatype, strings),
            algo: self.string(at.algo, strings),
            proto: self.string(at.proto, strings),
            channels: self.read(at.channels),
        }
    }

    fn ce_coll(&self, strings: &StringTable) -> Coll {
        Coll {
            comm_hash: 0,
            seq: self.read(at::CE_SEQ),
            count: self.read(at::CE_COUNT),
            root: self.read(at::CE_ROOT),
            func: self.string(at::CE_FUNC, strings),
            datatype: self.string(at::CE_DATATYPE, strings),
            algo: strings.intern(b"CE"),
            proto: 0,
            channels: 0,
        }
    }

    fn p2p(&self, strings: &StringTable) -> P2p {
        let at = &self.layout.p2p;
        P2p {
            comm_hash: at.comm_hash.map_or(0, |hash| self.read(hash)),
            count: self.read(at.count),
            peer: self.read(at.peer),
            func: self.string(at.func, strings),
            datatype: self.string(at.datatype, strings),
            channels: at.channels.map_or(0, |channels| self.read(channels)),
        }
    }

    fn api(&self, (func, count, datatype, captured): (usize, usize, usize, usize), strings: &StringTable) -> Api {
        Api {
            func: self.string(func, strings),
            datatype: self.string(datatype, strings),
            count: self.read(count),
            root: 0,
            captured: self.flag(captured),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// The C declarations as structs, so that the compiler computes the offsets; only the fields, in NCCL's order.
    macro_rules! c_struct {
        ($name:ident { $($field:ident: $ty:ty),+ $(,)? }) => {
            #[repr(C)]
            struct $name { $($field: $ty),+ }
        };
    }
    type P = *const c_void;

    c_struct!(Head1 { kind: u8, parent: P, rank: i32 });
    c_struct!(Head8 { kind: u64, parent: P, rank: i32 });
    c_struct!(CollV3 {
        name: P,
        comm_hash: u64,
        seq: u64,
        func: P,
        send: P,
        recv: P,
        count: usize,
        root: i32,
        datatype: P,
        max_channels: u8,
        warps: u8,
        algo: P,
        proto: P,
    });
    c_struct!(CollV4 {
        seq: u64,
        func: P,
        send: P,
        recv: P,
        count: usize,
        root: i32,
        datatype: P,
        channels: u8,
        warps: u8,
        algo: P,
        proto: P,
    });
    c_struct!(CollV7 {
        seq: u64,
        func: P,
        send: P,
        recv: P,
        count: usize,
        root: i32,
        datatype: P,
        channels: u8,
        warps: u8,
        algo: P,
        proto: P,
        parent_group: P,
        variant: P,
        is_sym: bool,
        user_tag: u64,
    });
    c_struct!(P2pV3 { name: P, comm_hash: u64, func: P, buff: P, datatype: P, count: usize, peer: i32 });
    c_struct!(P2pV7 {
        func: P,
        buff: P,
        datatype: P,
        count: usize,
        peer: i32,
        channels: u8,
        parent_group: P,
        user_tag: u64,
    });
    c_struct!(CollApi { func: P, count: usize, datatype: P, root: i32, stream: P, captured: bool, user_tag: u64 });
    c_struct!(P2pApi { func: P, count: usize, datatype: P, stream: P, captured: bool, user_tag: u64 });
    c_struct!(Proxy { pid: i32, channel: u8, peer: i32, steps: i32, chunk: i32, is_send: i32 });
    c_struct!(KernelCh { channel: u8, timer: u64 });
    c_struct!(CeColl {
        seq: u64,
        func: P,
        send: P,
        recv: P,
        count: usize,
        root: i32,
        datatype: P,
        strategy: P,
        intra: bool,
        batch: u32,
        batches: u32,
        ce_seq: u32,
        stream: P,
        user_tag: u64,
    });
    c_struct!(CeBatch { ops: i32, bytes: usize, intra: bool });
    c_struct!(Phase { channel: u8, phase: u8, name: P, timer: u64 });

    /// Prints and checks an offset: `cargo test -p rankscope-sources layout -- --nocapture`.
    fn same(what: &str, ours: usize, c: usize) {
        println!("{what:<24} {ours:>4}");
        assert_eq!(ours, c, "{what}");
    }

    #[test]
    fn every_offset_is_that_of_the_c_declaration() {
        for head in [(offset_of!(Head1, parent), size_of::<Head1>()), (offset_of!(Head8, parent), size_of::<Head8>())] {
            same("parentObj, union", PARENT * 1000 + UNION, head.0 * 1000 + head.1);
        }
        let u = UNION;
        macro_rules! check {
            ($what:literal, $($ours:expr => $ty:ident . $field:ident),+ $(,)?) => {
                $( same(concat!($what, ".", stringify!($field)), $ours, u + offset_of!($ty, $field)); )+
            };
        }
        let (c3, c4, c7) = (layout(3).coll, layout(4).coll, layout(7).coll);
        check!("v3 coll", c3.comm_hash.unwrap() => CollV3.comm_hash, c3.seq => CollV3.seq, c3.func => CollV3.func,
            c3.count => CollV3.count, c3.root => CollV3.root, c3.datatype => CollV3.datatype,
            c3.channels => CollV3.max_channels, c3.algo => CollV3.algo, c3.proto => CollV3.proto);
        check!("v4 coll", c4.seq => CollV4.seq, c4.func => CollV4.func, c4.count => CollV4.count,
            c4.root => CollV4.root, c4.datatype => CollV4.datatype, c4.channels => CollV4.channels,
            c4.algo => CollV4.algo, c4.proto => CollV4.proto);
        check!("v7 coll", c7.seq => CollV7.seq, c7.func => CollV7.func, c7.count => CollV7.count,
            c7.root => CollV7.root, c7.datatype => CollV7.datatype, c7.channels => CollV7.channels,
            c7.algo => CollV7.algo, c7.proto => CollV7.proto, c7.parent_group.unwrap() => CollV7.parent_group);
        let (p3, p7) = (layout(3).p2p, layout(7).p2p);
        check!("v3 p2p", p3.comm_hash.unwrap() => P2pV3.comm_hash, p3.func => P2pV3.func,
            p3.datatype => P2pV3.datatype, p3.count => P2pV3.count, p3.peer => P2pV3.peer);
        check!("v7 p2p", p7.func => P2pV7.func, p7.datatype => P2pV7.datatype, p7.count => P2pV7.count,
            p7.peer => P2pV7.peer, p7.channels.unwrap() => P2pV7.channels,
            p7.parent_group.unwrap() => P2pV7.parent_group);
        check!("collApi", at::COLL_API.0 => CollApi.func, at::COLL_API.1 => CollApi.count,
            at::COLL_API.2 => CollApi.datatype, at::COLL_API.3 => CollApi.captured, at::COLL_API_ROOT => CollApi.root);
        check!("p2pApi", at::P2P_API.0 => P2pApi.func, at::P2P_API.1 => P2pApi.count,
            at::P2P_API.2 => P2pApi.datatype, at::P2P_API.3 => P2pApi.captured);
        check!("proxyOp", at::PROXY_PID => Proxy.pid, at::PROXY_CHANNEL => Proxy.channel,
            at::PROXY_PEER => Proxy.peer, at::PROXY_STEPS => Proxy.steps, at::PROXY_CHUNK => Proxy.chunk,
            at::PROXY_IS_SEND => Proxy.is_send);
        check!("kernelCh", at::KERNEL_CH_CHANNEL => KernelCh.channel,
            layout(7).kernel_ch_timer.unwrap() => KernelCh.timer);
        check!("ceColl", at::CE_SEQ => CeColl.seq, at::CE_FUNC => CeColl.func, at::CE_COUNT => CeColl.count,
            at::CE_ROOT => CeColl.root, at::CE_DATATYPE => CeColl.datatype);
        check!("ceCollBatch", at::CE_BATCH_BYTES => CeBatch.bytes);
        check!("kernelPhase", at::PHASE_CHANNEL => Phase.channel, at::PHASE_NAME => Phase.name,
            at::PHASE_TIMER => Phase.timer);
        // The longest member of the union determines the size.
        same("v3 size", layout(3).size, u + size_of::<CollV3>());
        same("v4 size", layout(4).size, u + size_of::<CollV4>());
        same("v5 size", layout(5).size, u + offset_of!(CollV7, variant));
        same("v6 size", layout(6).size, u + offset_of!(CeColl, user_tag));
        same("v7 size", layout(7).size, u + size_of::<CollV7>());
    }
}
