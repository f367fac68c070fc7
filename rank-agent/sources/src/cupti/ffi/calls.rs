//! CUPTI's functions with safe signatures.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::callbacks::{self, Callbacks};
use super::library::{Cupti, SUCCESS, Status, Subscriber, SubscriberParams};
use crate::error::Error;

/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const MULTIPLE_SUBSCRIBERS: Status = 39;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: no more records. Older releases also return it for a second subscriber.
const MAX_LIMIT_REACHED: Status = 12;
/// `CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2`: Kineto uses the other two.
pub(crate) const EXTERNAL_KIND: u32 = 5;
/// `CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER`.
const ATTRIBUTE_ZEROED: u32 = 5;
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`.
const THREAD_ID_SYSTEM: u32 = 1;
/// The most bytes that are read of a string from CUPTI.
const MAX_STRING_BYTES: usize = 64 << 10;

/// `CUpti_CallbackDomain`.
pub(crate) mod domain {
    pub(crate) const DRIVER_API: u32 = 1;
    pub(crate) const RUNTIME_API: u32 = 2;
    pub(crate) const RESOURCE: u32 = 3;
}

/// The subscription as a number: only CUPTI dereferences it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription(usize);

impl Cupti {
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        Err(Error::CuptiCall { call, code: status, message: self.result_string(status) })
    }

    fn result_string(&self, status: Status) -> String {
        let mut text = ptr::null();
        // SAFETY: it writes one pointer to a static string.
        let found = unsafe { (self.functions.get_result_string)(status, &raw mut text) };
        // SAFETY: as above.
        let text = if found == SUCCESS { unsafe { string(text) } } else { None };
        text.unwrap_or_else(|| "unknown result".into())
    }

    /// Becomes the only subscriber. This is the first call to CUPTI.
    pub(crate) fn subscribe<C: Callbacks>(&self) -> Result<Subscription, Error> {
        let mut subscriber: Subscriber = ptr::null_mut();
        // SAFETY: it writes one handle; the callback lives as long as the process.
        let status =
            unsafe { (self.functions.subscribe)(&raw mut subscriber, callbacks::on_callback::<C>, ptr::null_mut()) };
        match status {
            MULTIPLE_SUBSCRIBERS | MAX_LIMIT_REACHED => Err(Error::CuptiBusy { by: self.other_subscriber::<C>() }),
            status => self.check("cuptiSubscribe", status).map(|()| Subscription(subscriber as usize)),
        }
    }

    /// Name of the other subscriber, which CUDA 13.0 and later return with their refusal.
    fn other_subscriber<C: Callbacks>(&self) -> Option<String> {
        let subscribe = self.functions.subscribe_v2?;
        let mut name: [c_char; 64] = [0; 64];
        let mut params = SubscriberParams {
            struct_size: size_of::<SubscriberParams>(),
            name: c"rankscope".as_ptr(),
            old_name: name.as_mut_ptr(),
            old_name_size: name.len(),
        };
        let mut subscriber: Subscriber = ptr::null_mut();
        // SAFETY: the sizes of the struct and of the name are given with them; it writes within both.
        let status =
            unsafe { subscribe(&raw mut subscriber, callbacks::on_callback::<C>, ptr::null_mut(), &raw mut params) };
        if status == SUCCESS {
            // The other subscriber has left in between. This handle is not the one in use.
            // SAFETY: CUPTI has just returned this handle.
            unsafe { (self.functions.unsubscribe)(subscriber) };
        }
        let bytes: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn unsubscribe(&self, subscription: Subscription) -> Result<(), Error> {
        // SAFETY: the handle is one that `subscribe` returned.
        self.check("cuptiUnsubscribe", unsafe { (self.functions.unsubscribe)(subscription.0 as Subscriber) })
    }

    /// Enables the callback of one function or event.
    pub(crate) fn enable_callback(&self, subscription: Subscription, domain: u32, id: u32) -> Result<(), Error> {
        let subscriber = subscription.0 as Subscriber;
        // SAFETY: the handle is one that `subscribe` returned.
        self.check("cuptiEnableCallback", unsafe { (self.functions.enable_callback)(1, subscriber, domain, id) })
    }

    /// Makes CUPTI use the recorder's clock.
    pub(crate) fn register_timestamp<C: Callbacks>(&self) -> Result<(), Error> {
        const CALL: &str = "cuptiActivityRegisterTimestampCallback";
        let Some(register) = self.functions.register_timestamp else {
            return Err(Error::CuptiCall { call: CALL, code: 0, message: "the library does not have it".into() });
        };
        // SAFETY: the callback lives as long as the process.
        self.check(CALL, unsafe { register(callbacks::on_timestamp::<C>) })
    }

    /// Registers the callbacks that lend buffers to CUPTI and take them back.
    pub(crate) fn register_buffers<C: Callbacks>(&self) -> Result<(), Error> {
        // SAFETY: the callbacks live as long as the process.
        let status =
            unsafe { (self.functions.register_callbacks)(callbacks::on_request::<C>, callbacks::on_complete::<C>) };
        self.check("cuptiActivityRegisterCallbacks", status)?;
        // This attribute makes the program's threads faster; without it nothing is lost.
        if let Some(set) = self.functions.set_attribute {
            let (mut size, mut value) = (size_of::<u8>(), 1_u8);
            // SAFETY: the attribute is one byte, as the size says.
            unsafe { set(ATTRIBUTE_ZEROED, &raw mut size, (&raw mut value).cast()) };
        }
        Ok(())
    }

    /// Makes records carry the system's thread ids.
    pub(crate) fn use_system_thread_ids(&self) -> Result<(), Error> {
        const CALL: &str = "cuptiSetThreadIdType";
        let Some(set) = self.functions.set_thread_id_type else {
            return Err(Error::CuptiCall { call: CALL, code: 0, message: "the library does not have it".into() });
        };
        // SAFETY: it takes a number.
        self.check(CALL, unsafe { set(THREAD_ID_SYSTEM) })
    }

    pub(crate) fn enable(&self, kind: u32) -> Result<(), Error> {
        // SAFETY: it takes a number.
        self.check("cuptiActivityEnable", unsafe { (self.functions.enable)(kind) })
    }

    pub(crate) fn disable(&self, kind: u32) -> Result<(), Error> {
        // SAFETY: it takes a number.
        self.check("cuptiActivityDisable", unsafe { (self.functions.disable)(kind) })
    }

    /// Whether CUPTI can record selected driver calls.
    pub(crate) fn can_choose_driver_calls(&self) -> bool {
        self.functions.enable_driver_api.is_some()
    }

    /// Enables or disables the records of one driver call.
    pub(crate) fn enable_driver_call(&self, id: u32, enable: bool) -> Result<(), Error> {
        const CALL: &str = "cuptiActivityEnableDriverApi";
        let Some(call) = self.functions.enable_driver_api else {
            return Err(Error::CuptiCall { call: CALL, code: 0, message: "the library does not have it".into() });
        };
        // SAFETY: it takes two numbers.
        self.check(CALL, unsafe { call(id, enable.into()) })
    }

    /// Takes one runtime call out of the kind of runtime calls, if CUPTI can.
    pub(crate) fn leave_out_runtime_call(&self, id: u32) {
        if let Some(call) = self.functions.enable_runtime_api {
            // The worker leaves the record out if CUPTI goes on writing it.
            // SAFETY: it takes two numbers.
            unsafe { call(id, 0) };
        }
    }

    /// Makes CUPTI hand back the buffers whose records are complete; with `forced`, all buffers.
    pub(crate) fn flush(&self, forced: bool) -> Result<(), Error> {
        // SAFETY: it takes a number. It calls `on_complete` on this thread, which takes no lock that this thread holds.
        self.check("cuptiActivityFlushAll", unsafe { (self.functions.flush_all)(forced.into()) })
    }

    /// Number of records without a buffer since the last call.
    pub(crate) fn dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: it writes one size; a null context and stream 0 mean the global queue.
        let status = unsafe { (self.functions.get_num_dropped_records)(ptr::null_mut(), 0, &raw mut dropped) };
        if status == SUCCESS { dropped as u64 } else { 0 }
    }

    /// CUPTI's current time in ns.
    pub(crate) fn timestamp(&self) -> Option<u64> {
        let mut ns = 0;
        // SAFETY: it writes one u64.
        let status = unsafe { (self.functions.get_timestamp)(&raw mut ns) };
        (status == SUCCESS).then_some(ns)
    }

    /// Work that this thread launches from now on carries `id`.
    #[inline]
    pub(crate) fn push_external_id(&self, id: u64) -> bool {
        // SAFETY: it takes two numbers.
        unsafe { (self.functions.push_external_id)(EXTERNAL_KIND, id) == SUCCESS }
    }

    /// Work that this thread launches from now on carries the previous id.
    #[inline]
    pub(crate) fn pop_external_id(&self) {
        let mut last = 0;
        // SAFETY: it writes one u64. It fails without a pushed id, which has no effect.
        unsafe { (self.functions.pop_external_id)(EXTERNAL_KIND, &raw mut last) };
    }

    /// Name of a runtime or driver call.
    pub(crate) fn call_name(&self, domain: u32, id: u32) -> Option<String> {
        let mut name = ptr::null();
        // SAFETY: it writes one pointer to a static string.
        let status = unsafe { (self.functions.get_callback_name)(domain, id, &raw mut name) };
        // SAFETY: as above.
        if status == SUCCESS { unsafe { string(name) } } else { None }
    }

    /// Stores the offsets of a buffer's records, from CUPTI's own iterator. Returns `false` if it refused before the
    /// end.
    pub(crate) fn record_starts(&self, bytes: &[u8], starts: &mut Vec<usize>) -> bool {
        starts.clear();
        let base = bytes.as_ptr() as usize;
        let mut record: *mut u8 = ptr::null_mut();
        loop {
            // SAFETY: it reads within `bytes` and writes one pointer into them. The buffer is not written to.
            let status =
                unsafe { (self.functions.get_next_record)(bytes.as_ptr().cast_mut(), bytes.len(), &raw mut record) };
            if status != SUCCESS {
                return status == MAX_LIMIT_REACHED;
            }
            let rising = |start: &usize| *start < bytes.len() && starts.last().is_none_or(|last| start > last);
            let Some(start) = (record as usize).checked_sub(base).filter(rising) else { return false };
            starts.push(start);
        }
    }

    /// Reads the string that a record of this library points to. It reads the bytes at each call, because CUPTI may use
    /// the address again for another string.
    pub(crate) fn string_at(&self, address: u64) -> Option<String> {
        // SAFETY: the address is from a record that CUPTI wrote; names of kernels and markers are valid for the life of
        // the process or, for an unloaded module, at least until CUPTI handed the buffer back, a moment ago.
        unsafe { string(address as usize as *const c_char) }
    }
}

/// Copies a C string; replaces bytes that are not UTF-8.
unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees a string that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    let bytes = text.to_bytes();
    Some(String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_STRING_BYTES)]).into_owned())
}
