//! NVTX's injection interface: the functions that it calls instead of its own empty ones.
//!
//! Source: `nvtxTypes.h` and `nvtxImpl.h` of NVTX 3. An event's attributes have 48 bytes, with the message's type at
//! offset 32 and the message at offset 40.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Mark, pop, push, register};

/// `NVTX_ETID_CALLBACKS`.
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE`, `…_CORE2`: functions without and with a domain.
const CORE: u32 = 1;
const CORE2: u32 = 5;
/// `NVTX_CBID_CORE_RangePushEx`, `…PushA`, `…PushW`, `…Pop`.
const PUSH_EX: usize = 8;
const PUSH_A: usize = 9;
const PUSH_W: usize = 10;
const POP: usize = 11;
/// `NVTX_CBID_CORE2_DomainRangePushEx`, `…Pop`, `…RegisterStringA`.
const DOMAIN_PUSH_EX: usize = 4;
const DOMAIN_POP: usize = 5;
const DOMAIN_REGISTER_A: usize = 10;
/// `NVTX_MESSAGE_TYPE_ASCII`, `…_REGISTERED`.
const ASCII: i32 = 1;
const REGISTERED: i32 = 3;
/// Offsets of the message's type and of the message, and the smallest size that holds both.
const MESSAGE_TYPE_AT: usize = 32;
const MESSAGE_AT: usize = 40;
const LEAST_SIZE: u16 = 48;

/// NVTX's function that returns a table by its number.
pub(crate) type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

#[repr(C)]
struct Callbacks {
    size: usize,
    get_module: unsafe extern "C" fn(u32, *mut *mut *mut *const c_void, *mut u32) -> c_int,
}

/// Replaces NVTX's functions. Returns `false` if its tables are not as expected.
///
/// # Safety
/// `get` is the argument of `InitializeInjectionNvtx2`, or null.
pub(crate) unsafe fn attach(get: Option<GetExportTable>) -> bool {
    let Some(get) = get else { return false };
    // SAFETY: NVTX returns null or a table of this type that lives as long as the program.
    let Some(callbacks) = (unsafe { get(CALLBACKS).cast::<Callbacks>().as_ref() }) else { return false };
    if callbacks.size < size_of::<Callbacks>() {
        return false;
    }
    let core: [(usize, *const c_void); 4] = [
        (PUSH_EX, push_ex as *const c_void),
        (PUSH_A, push_a as *const c_void),
        (PUSH_W, push_w as *const c_void),
        (POP, range_pop as *const c_void),
    ];
    let domains: [(usize, *const c_void); 3] = [
        (DOMAIN_PUSH_EX, domain_push_ex as *const c_void),
        (DOMAIN_POP, domain_pop as *const c_void),
        (DOMAIN_REGISTER_A, domain_register as *const c_void),
    ];
    // Replace both, also if the first fails.
    let (core, domains) = (replace(callbacks, CORE, &core), replace(callbacks, CORE2, &domains));
    core | domains
}

fn replace(callbacks: &Callbacks, module: u32, functions: &[(usize, *const c_void)]) -> bool {
    let (mut table, mut size) = (std::ptr::null_mut::<*mut *const c_void>(), 0_u32);
    // SAFETY: NVTX writes two results to these addresses.
    let found = unsafe { (callbacks.get_module)(module, &raw mut table, &raw mut size) };
    if found == 0 || table.is_null() {
        return false;
    }
    for (id, function) in functions.iter().filter(|(id, _)| *id < size as usize) {
        // SAFETY: the table has `size` entries, each null or the address of a function pointer of NVTX, which may be
        // replaced while NVTX initialises, as it does now.
        unsafe {
            let at = table.add(*id).read();
            if !at.is_null() {
                at.write(*function);
            }
        }
    }
    true
}

/// The message of an event's attributes.
///
/// # Safety
/// `attributes` is null or points to attributes as NVTX documents them.
unsafe fn message<'a>(attributes: *const c_void) -> Mark<'a> {
    if attributes.is_null() {
        return Mark::Unnamed;
    }
    let bytes = attributes.cast::<u8>();
    // SAFETY: the second half of the first word is the size; nothing beyond it is read.
    unsafe {
        if bytes.add(2).cast::<u16>().read_unaligned() < LEAST_SIZE {
            return Mark::Unnamed;
        }
        let at = bytes.add(MESSAGE_AT).cast::<*const c_char>().read_unaligned();
        match bytes.add(MESSAGE_TYPE_AT).cast::<i32>().read_unaligned() {
            ASCII if !at.is_null() => Mark::Text(CStr::from_ptr(at).to_bytes()),
            REGISTERED => Mark::Registered(at as usize),
            _ => Mark::Unnamed,
        }
    }
}

/// The message of attributes with these bytes. Where they say that it is a string, it is `text`.
#[cfg(feature = "fuzzing")]
pub(super) fn message_of<'a>(attributes: &[u8; LEAST_SIZE as usize], text: &'a CStr) -> Mark<'a> {
    let mut bytes = *attributes;
    if bytes[MESSAGE_TYPE_AT..][..4] == ASCII.to_ne_bytes() && bytes[MESSAGE_AT..] != [0; 8] {
        bytes[MESSAGE_AT..].copy_from_slice(&text.as_ptr().expose_provenance().to_ne_bytes());
    }
    // SAFETY: the bytes hold all that is read, and a pointer to a string in them is that of `text`.
    unsafe { message(bytes.as_ptr().cast()) }
}

/// Runs `body` and returns NVTX's depth: −1, as without a tool, because NVTX promises no other value.
fn enter(body: impl FnOnce()) -> c_int {
    // A panic must not unwind into the program; only this range is lost.
    let _ = catch_unwind(AssertUnwindSafe(body));
    -1
}

unsafe extern "C" fn push_a(text: *const c_char) -> c_int {
    // SAFETY: the pointer is null or a string that ends with a zero byte and lives during the call.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes());
    enter(|| push(text.map_or(Mark::Unnamed, Mark::Text)))
}

/// Begins a range whose name is not read. Its end arrives like that of any other range, so it must count as one.
unsafe extern "C" fn push_w(_text: *const c_void) -> c_int {
    enter(|| push(Mark::Unnamed))
}

unsafe extern "C" fn push_ex(attributes: *const c_void) -> c_int {
    // SAFETY: as for the caller.
    enter(|| push(unsafe { message(attributes) }))
}

unsafe extern "C" fn range_pop() -> c_int {
    enter(pop)
}

unsafe extern "C" fn domain_push_ex(_domain: *const c_void, attributes: *const c_void) -> c_int {
    // SAFETY: as for the caller.
    enter(|| push(unsafe { message(attributes) }))
}

unsafe extern "C" fn domain_pop(_domain: *const c_void) -> c_int {
    enter(pop)
}

/// Returns the number of the string as the handle that NVTX keeps.
unsafe extern "C" fn domain_register(_domain: *const c_void, text: *const c_char) -> *const c_void {
    if text.is_null() {
        return std::ptr::null();
    }
    // SAFETY: a string that ends with a zero byte and lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    catch_unwind(|| register(text)).unwrap_or(0) as *const c_void
}
