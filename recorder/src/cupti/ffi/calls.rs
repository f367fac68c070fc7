//! CUPTI's functions, safe to call.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::callbacks;
use super::library::{Cupti, SUCCESS, Status, Subscriber, SubscriberParams};
use crate::Error;

/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const MULTIPLE_SUBSCRIBERS: Status = 39;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: no more records, and what older releases said of a second subscriber.
const MAX_LIMIT_REACHED: Status = 12;
/// `CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2`: Kineto takes the other two.
pub(crate) const EXTERNAL_KIND: u32 = 5;
/// `CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER`.
const ATTRIBUTE_ZEROED: u32 = 5;
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`.
const THREAD_ID_SYSTEM: u32 = 1;
/// Longest string of CUPTI's that is read.
const MAX_STRING_BYTES: usize = 64 << 10;

/// `CUpti_CallbackDomain`.
pub(crate) mod domain {
    pub(crate) const DRIVER_API: u32 = 1;
    pub(crate) const RUNTIME_API: u32 = 2;
    pub(crate) const RESOURCE: u32 = 3;
}

/// The subscription, as a number: CUPTI alone looks behind it.
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

    /// Becomes the one subscriber, before anything else is asked of CUPTI.
    pub(crate) fn subscribe(&self) -> Result<Subscription, Error> {
        let mut subscriber: Subscriber = ptr::null_mut();
        // SAFETY: it writes one handle; the callback lives as long as the process.
        let status =
            unsafe { (self.functions.subscribe)(&raw mut subscriber, callbacks::on_callback, ptr::null_mut()) };
        match status {
            MULTIPLE_SUBSCRIBERS | MAX_LIMIT_REACHED => Err(Error::CuptiBusy { by: self.other_subscriber() }),
            status => self.check("cuptiSubscribe", status).map(|()| Subscription(subscriber as usize)),
        }
    }

    /// The name of whoever is subscribed, where the library can tell (CUDA 13.0 and later). It is told in the refusal.
    fn other_subscriber(&self) -> Option<String> {
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
            unsafe { subscribe(&raw mut subscriber, callbacks::on_callback, ptr::null_mut(), &raw mut params) };
        if status == SUCCESS {
            // The other has left in between. This handle is not the one that is used.
            // SAFETY: the handle was just made.
            unsafe { (self.functions.unsubscribe)(subscriber) };
        }
        let bytes: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn unsubscribe(&self, subscription: Subscription) -> Result<(), Error> {
        // SAFETY: the handle is one that `subscribe` returned.
        self.check("cuptiUnsubscribe", unsafe { (self.functions.unsubscribe)(subscription.0 as Subscriber) })
    }

    /// Calls us back for one function or event.
    pub(crate) fn enable_callback(&self, subscription: Subscription, domain: u32, id: u32) -> Result<(), Error> {
        let subscriber = subscription.0 as Subscriber;
        // SAFETY: the handle is one that `subscribe` returned.
        self.check("cuptiEnableCallback", unsafe { (self.functions.enable_callback)(1, subscriber, domain, id) })
    }

    /// Lets CUPTI take its times from the recorder's clock.
    pub(crate) fn register_timestamp(&self) -> Result<(), Error> {
        const CALL: &str = "cuptiActivityRegisterTimestampCallback";
        let Some(register) = self.functions.register_timestamp else {
            return Err(Error::CuptiCall { call: CALL, code: 0, message: "the library does not have it".into() });
        };
        // SAFETY: the callback lives as long as the process.
        self.check(CALL, unsafe { register(callbacks::on_timestamp) })
    }

    /// Lets CUPTI ask for buffers and hand them back.
    pub(crate) fn register_buffers(&self) -> Result<(), Error> {
        // SAFETY: the callbacks live as long as the process.
        let status = unsafe { (self.functions.register_callbacks)(callbacks::on_request, callbacks::on_complete) };
        self.check("cuptiActivityRegisterCallbacks", status)?;
        // What follows makes the program's threads faster and is no loss where it is refused.
        if let Some(set) = self.functions.set_attribute {
            let (mut size, mut value) = (size_of::<u8>(), 1_u8);
            // SAFETY: the attribute is one byte, as the size says.
            unsafe { set(ATTRIBUTE_ZEROED, &raw mut size, (&raw mut value).cast()) };
        }
        Ok(())
    }

    /// Lets records name threads as the system does.
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

    /// Whether single driver calls can be recorded.
    pub(crate) fn can_choose_driver_calls(&self) -> bool {
        self.functions.enable_driver_api.is_some()
    }

    /// Records one driver call, or no longer.
    pub(crate) fn enable_driver_call(&self, id: u32, enable: bool) -> Result<(), Error> {
        const CALL: &str = "cuptiActivityEnableDriverApi";
        let Some(call) = self.functions.enable_driver_api else {
            return Err(Error::CuptiCall { call: CALL, code: 0, message: "the library does not have it".into() });
        };
        // SAFETY: it takes two numbers.
        self.check(CALL, unsafe { call(id, enable.into()) })
    }

    /// Hands back the buffers whose records are complete; with `forced`, all.
    pub(crate) fn flush(&self, forced: bool) -> Result<(), Error> {
        // SAFETY: it takes a number. It calls `on_complete` on this thread, which takes no lock that is held here.
        self.check("cuptiActivityFlushAll", unsafe { (self.functions.flush_all)(forced.into()) })
    }

    /// Records that found no buffer since this was last asked.
    pub(crate) fn dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: it writes one size; no context and stream 0 mean the global queue.
        let status = unsafe { (self.functions.get_num_dropped_records)(ptr::null_mut(), 0, &raw mut dropped) };
        if status == SUCCESS { dropped as u64 } else { 0 }
    }

    /// CUPTI's present, in ns.
    pub(crate) fn timestamp(&self) -> Option<u64> {
        let mut ns = 0;
        // SAFETY: it writes one u64.
        let status = unsafe { (self.functions.get_timestamp)(&raw mut ns) };
        (status == SUCCESS).then_some(ns)
    }

    /// What is launched on this thread from now on carries `id`.
    #[inline]
    pub(crate) fn push_external_id(&self, id: u64) -> bool {
        // SAFETY: it takes two numbers.
        unsafe { (self.functions.push_external_id)(EXTERNAL_KIND, id) == SUCCESS }
    }

    /// … and carries the one before again.
    #[inline]
    pub(crate) fn pop_external_id(&self) {
        let mut last = 0;
        // SAFETY: it writes one u64. It fails where nothing was pushed, which is nothing to tell.
        unsafe { (self.functions.pop_external_id)(EXTERNAL_KIND, &raw mut last) };
    }

    /// The name of a runtime or driver call.
    pub(crate) fn call_name(&self, domain: u32, id: u32) -> Option<String> {
        let mut name = ptr::null();
        // SAFETY: it writes one pointer to a static string.
        let status = unsafe { (self.functions.get_callback_name)(domain, id, &raw mut name) };
        // SAFETY: as above.
        if status == SUCCESS { unsafe { string(name) } } else { None }
    }

    /// Where the records of a buffer begin, by CUPTI's own iterator; `false` if it refused before the end.
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

    /// The string that a record of this library points to. The bytes are read anew each time: an address may be used
    /// again for another.
    pub(crate) fn string_at(&self, address: u64) -> Option<String> {
        // SAFETY: the address stands in a record that CUPTI wrote; names of kernels and markers stay valid for the life
        // of the process or, for an unloaded module, at least until the buffer was handed back, a moment ago.
        unsafe { string(address as usize as *const c_char) }
    }
}

/// A C string, with what is not UTF-8 replaced.
unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller says that it is a string that ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    let bytes = text.to_bytes();
    Some(String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_STRING_BYTES)]).into_owned())
}
