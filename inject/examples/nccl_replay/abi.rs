//! NCCL's descriptors, as C structs: the harness's own, so that a wrong offset of the library cannot agree with itself.

use std::ffi::CStr;
use std::mem::offset_of;

/// Types, as bits.
pub(crate) mod kind {
    pub(crate) const GROUP: u64 = 1;
    pub(crate) const COLL: u64 = 2;
    pub(crate) const P2P: u64 = 4;
    pub(crate) const PROXY_OP: u64 = 8;
    pub(crate) const PROXY_STEP: u64 = 16;
    pub(crate) const PROXY_CTRL: u64 = 32;
    pub(crate) const KERNEL_CH: u64 = 64;
    pub(crate) const GROUP_API: u64 = 256;
    pub(crate) const COLL_API: u64 = 512;
    pub(crate) const P2P_API: u64 = 1024;
    pub(crate) const KERNEL_LAUNCH: u64 = 2048;
    pub(crate) const CE_COLL: u64 = 4096;
    pub(crate) const CE_SYNC: u64 = 8192;
    pub(crate) const CE_BATCH: u64 = 16384;
    pub(crate) const KERNEL_PHASE: u64 = 32768;
}

/// Longest descriptor.
pub(crate) const MAX_SIZE: usize = 136;
/// What padding and the inactive members hold.
const GARBAGE: u8 = 0xa5;

#[repr(C)]
struct Head<T> {
    kind: T,
    parent: usize,
    rank: i32,
}

macro_rules! members {
    ($($name:ident { $($field:ident: $ty:ty),+ $(,)? })+) => {
        $( #[repr(C)] struct $name { $($field: $ty),+ } )+
    };
}

members! {
    CollV3 {
        name: usize, comm_hash: u64, seq: u64, func: usize, send: usize, recv: usize, count: usize, root: i32,
        datatype: usize, channels: u8, warps: u8, algo: usize, proto: usize,
    }
    CollV4 {
        seq: u64, func: usize, send: usize, recv: usize, count: usize, root: i32, datatype: usize, channels: u8,
        warps: u8, algo: usize, proto: usize, parent_group: usize, variant: usize, is_sym: bool, user_tag: u64,
    }
    P2pV3 { name: usize, comm_hash: u64, func: usize, buff: usize, datatype: usize, count: usize, peer: i32 }
    P2pV4 {
        func: usize, buff: usize, datatype: usize, count: usize, peer: i32, channels: u8, parent_group: usize,
        user_tag: u64,
    }
    CollApi { func: usize, count: usize, datatype: usize, root: i32, stream: usize, captured: bool, user_tag: u64 }
    P2pApi { func: usize, count: usize, datatype: usize, stream: usize, captured: bool, user_tag: u64 }
    ProxyOp { pid: i32, channel: u8, peer: i32, steps: i32, chunk: i32, is_send: i32 }
    ProxyStep { step: i32 }
    KernelCh { channel: u8, timer: u64 }
    CeColl {
        seq: u64, func: usize, send: usize, recv: usize, count: usize, root: i32, datatype: usize, strategy: usize,
        intra: bool, batch: u32, batches: u32, ce_seq: u32, stream: usize, user_tag: u64,
    }
    CeBatch { ops: i32, bytes: usize, intra: bool }
    Phase { channel: u8, phase: u8, name: usize, timer: u64 }
}

/// A descriptor as NCCL's adapters make it: on the stack, not zeroed.
pub(crate) struct Descriptor {
    bytes: [u8; MAX_SIZE],
    version: u8,
}

/// Begins a member's fields behind the head.
const UNION: usize = 24;

macro_rules! put {
    ($descriptor:expr, $member:ident, $($field:ident = $value:expr),+ $(,)?) => {
        $( $descriptor.put(UNION + offset_of!($member, $field), &$value.to_ne_bytes()); )+
    };
}

fn address(text: &'static CStr) -> usize {
    text.as_ptr() as usize
}

/// What a collective says.
#[derive(Clone, Copy)]
pub(crate) struct Coll {
    pub(crate) comm_hash: u64,
    pub(crate) seq: u64,
    pub(crate) func: &'static CStr,
    pub(crate) count: usize,
    pub(crate) root: i32,
    pub(crate) datatype: &'static CStr,
    pub(crate) channels: u8,
    pub(crate) algo: &'static CStr,
    pub(crate) proto: &'static CStr,
}

impl Descriptor {
    pub(crate) fn new(version: u8, kind: u64, parent: usize) -> Self {
        let mut descriptor = Self { bytes: [GARBAGE; MAX_SIZE], version };
        if version < 5 {
            descriptor.put(offset_of!(Head<u8>, kind), &[kind as u8]);
            descriptor.put(offset_of!(Head<u8>, parent), &parent.to_ne_bytes());
            descriptor.put(offset_of!(Head<u8>, rank), &0_i32.to_ne_bytes());
        } else {
            descriptor.put(offset_of!(Head<u64>, kind), &kind.to_ne_bytes());
            descriptor.put(offset_of!(Head<u64>, parent), &parent.to_ne_bytes());
            descriptor.put(offset_of!(Head<u64>, rank), &0_i32.to_ne_bytes());
        }
        descriptor
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// As long as that of its version.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..[120, 104, 112, 112, 136][usize::from(self.version - 3)]]
    }

    pub(crate) fn coll(version: u8, parent: usize, group: usize, c: Coll) -> Self {
        let mut d = Self::new(version, kind::COLL, parent);
        let (func, datatype, algo, proto) = (address(c.func), address(c.datatype), address(c.algo), address(c.proto));
        if version == 3 {
            put!(
                d,
                CollV3,
                name = 0_usize,
                comm_hash = c.comm_hash,
                seq = c.seq,
                func = func,
                count = c.count,
                root = c.root,
                datatype = datatype,
                channels = c.channels,
                warps = 16_u8,
                algo = algo,
                proto = proto
            );
            return d;
        }
        put!(
            d,
            CollV4,
            seq = c.seq,
            func = func,
            count = c.count,
            root = c.root,
            datatype = datatype,
            channels = c.channels,
            warps = 16_u8,
            algo = algo,
            proto = proto
        );
        if version >= 5 {
            put!(d, CollV4, parent_group = group);
        }
        if version >= 7 {
            put!(d, CollV4, variant = 0_usize, user_tag = 7_u64);
        }
        d
    }

    pub(crate) fn p2p(
        version: u8,
        parent: usize,
        comm_hash: u64,
        func: &'static CStr,
        count: usize,
        peer: i32,
    ) -> Self {
        let mut d = Self::new(version, kind::P2P, parent);
        let (func, datatype) = (address(func), address(c"ncclFloat32"));
        if version == 3 {
            put!(
                d,
                P2pV3,
                name = 0_usize,
                comm_hash = comm_hash,
                func = func,
                datatype = datatype,
                count = count,
                peer = peer
            );
            return d;
        }
        // More channels than it will use, as NCCL says it.
        put!(d, P2pV4, func = func, datatype = datatype, count = count, peer = peer, channels = 8_u8);
        if version >= 5 {
            put!(d, P2pV4, parent_group = 0_usize);
        }
        d
    }

    pub(crate) fn coll_api(
        version: u8,
        parent: usize,
        func: &'static CStr,
        count: usize,
        datatype: &'static CStr,
    ) -> Self {
        let mut d = Self::new(version, kind::COLL_API, parent);
        put!(
            d,
            CollApi,
            func = address(func),
            count = count,
            datatype = address(datatype),
            root = 0_i32,
            stream = 0x1000_usize,
            captured = 0_u8
        );
        d
    }

    pub(crate) fn p2p_api(version: u8, parent: usize, func: &'static CStr, count: usize) -> Self {
        let mut d = Self::new(version, kind::P2P_API, parent);
        put!(
            d,
            P2pApi,
            func = address(func),
            count = count,
            datatype = address(c"ncclFloat32"),
            stream = 0x1000_usize,
            captured = 0_u8
        );
        d
    }

    pub(crate) fn kernel_ch(version: u8, parent: usize, channel: u8, timer: u64) -> Self {
        let mut d = Self::new(version, kind::KERNEL_CH, parent);
        put!(d, KernelCh, channel = channel);
        if version >= 4 {
            put!(d, KernelCh, timer = timer);
        }
        d
    }

    pub(crate) fn kernel_phase(parent: usize, channel: u8, timer: u64) -> Self {
        let mut d = Self::new(7, kind::KERNEL_PHASE, parent);
        put!(d, Phase, channel = channel, phase = 1_u8, name = address(c"compute"), timer = timer);
        d
    }

    pub(crate) fn proxy_op(version: u8, parent: usize, pid: i32, channel: u8, is_send: bool) -> Self {
        let mut d = Self::new(version, kind::PROXY_OP, parent);
        put!(
            d,
            ProxyOp,
            pid = pid,
            channel = channel,
            peer = 1_i32,
            steps = 2_i32,
            chunk = 131_072_i32,
            is_send = i32::from(is_send)
        );
        d
    }

    pub(crate) fn proxy_step(version: u8, parent: usize, step: i32) -> Self {
        let mut d = Self::new(version, kind::PROXY_STEP, parent);
        put!(d, ProxyStep, step = step);
        d
    }

    pub(crate) fn ce_coll(version: u8, parent: usize, seq: u64) -> Self {
        let mut d = Self::new(version, kind::CE_COLL, parent);
        put!(
            d,
            CeColl,
            seq = seq,
            func = address(c"AllGather"),
            count = 4096_usize,
            root = 0_i32,
            datatype = address(c"ncclInt8"),
            strategy = 0_usize
        );
        d
    }

    pub(crate) fn ce_batch(version: u8, parent: usize) -> Self {
        let mut d = Self::new(version, kind::CE_BATCH, parent);
        put!(d, CeBatch, ops = 4_i32, bytes = 16_384_usize);
        d
    }
}
