//! Pickles of dumps, whole, cut, and too large.

use super::*;

/// A value as Python's `repr` writes it.
fn repr(pickle: &Pickle<'_>, id: Id) -> String {
    let list = |ids: &[Id]| ids.iter().map(|id| repr(pickle, *id)).collect::<Vec<_>>().join(", ");
    match pickle.get(id) {
        Value::None => "None".into(),
        Value::Bool(value) => if *value { "True" } else { "False" }.into(),
        Value::Int(value) => value.to_string(),
        Value::Long(bytes) => format!("int of {} bytes", bytes.len()),
        Value::Float(value) => format!("{value:?}"),
        Value::Text(text) => format!("'{text}'"),
        Value::Bytes(bytes) => format!("b'{}'", String::from_utf8_lossy(bytes)),
        Value::List(items) => format!("[{}]", list(items)),
        Value::Tuple(items) => format!("({})", list(items)),
        Value::Dict(pairs) => {
            let pair = |(key, value): &(Id, Id)| format!("{}: {}", repr(pickle, *key), repr(pickle, *value));
            format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}

fn read(bytes: &[u8]) -> String {
    match Pickle::read(bytes, &mut Room::unlimited()) {
        Ok(pickle) => repr(&pickle, pickle.root()),
        Err(fault) => fault.to_string(),
    }
}

/// Made by `pickle.dumps(value, protocol)` of Python 3.11.
const VALUE: &str =
    "{'a': [1, 300, 70000, -5, 9223372036854775808, 2.5, None, True, False], 'b': (1, (2, 3), (), b'x'), 'c': {}}";
const PROTOCOL_2: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01M,\x01Jp\x11\x01\x00J\xfb\xff\xff\xff\
    \x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00G@\x04\x00\x00\x00\x00\x00\x00N\x88\x89eX\x01\
    \x00\x00\x00bq\x03K\x01K\x02K\x03\x86q\x04)\x87q\x05X\x01\x00\x00\x00cq\x06}q\x07u.";
const PROTOCOL_4: &[u8] = b"\x80\x04\x95M\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01M,\x01Jp\x11\x01\
    \x00J\xfb\xff\xff\xff\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00G@\x04\x00\x00\x00\x00\
    \x00\x00N\x88\x89e\x8c\x01b\x94(K\x01K\x02K\x03\x86\x94)C\x01x\x94t\x94\x8c\x01c\x94}\x94u\
    .";
const PROTOCOL_5: &[u8] = b"\x80\x05\x95M\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01M,\x01Jp\x11\x01\
    \x00J\xfb\xff\xff\xff\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00G@\x04\x00\x00\x00\x00\
    \x00\x00N\x88\x89e\x8c\x01b\x94(K\x01K\x02K\x03\x86\x94)C\x01x\x94t\x94\x8c\x01c\x94}\x94u\
    .";

#[test]
fn plain_values_are_read() {
    for bytes in [PROTOCOL_4, PROTOCOL_5] {
        assert_eq!(read(bytes), VALUE);
    }
    // Protocol 2 has no bytes.
    assert_eq!(read(PROTOCOL_2), VALUE.replace(", b'x'", ""));
}

/// Invariant (input): A pickle executes nothing. Python code in it is refused, with its offset.
#[test]
fn python_code_is_refused_with_its_place() {
    assert_eq!(
        read(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R."),
        "byte 2: instruction GLOBAL names or calls Python code, which is never executed"
    );
    assert_eq!(
        read(b"\x80\x04\x8c\x02os\x8c\x06system\x93."),
        "byte 14: instruction STACK_GLOBAL names or calls Python code, which is never executed"
    );
    assert_eq!(read(b"\x80\x04NI5\n."), "byte 3: instruction 0x49 is not read");
}

#[test]
fn malformed_pickles_are_errors() {
    for (bytes, error) in [
        (&b""[..], "byte 0: the pickle ends here: 1 bytes are needed, 0 are left"),
        (b"\x80\x01.", "byte 0: protocol 1 is not read, only 2 to 5"),
        (b"\x80\x04.", "byte 2: the stack is empty"),
        (b"\x80\x02X\xff\xff\xff\xffab", "byte 2: the pickle ends here: 4294967295 bytes are needed, 2 are left"),
        (
            b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
            "byte 2: the pickle ends here: 18446744073709551615 bytes are needed, 0 are left",
        ),
        (b"\x80\x04\x8c\x01\xff.", "byte 2: a text is not UTF-8"),
        (b"\x80\x04e.", "byte 2: there is no mark"),
        (b"\x80\x04(1e.", "byte 4: there is no mark"),
        (b"\x80\x04N(a.", "byte 4: the stack is empty"),
        (b"\x80\x04NNa.", "byte 4: items are appended to something that is no list"),
        (b"\x80\x04}(Nu.", "byte 5: a key has no value"),
        (b"\x80\x04h\x07.", "byte 2: the memo has no entry 7"),
    ] {
        assert_eq!(read(bytes), error);
    }
}

/// Invariant (input): A pickle with any cut or changed byte is a value or an error.
#[test]
fn every_cut_and_every_changed_byte_is_a_value_or_an_error() {
    for bytes in [PROTOCOL_2, PROTOCOL_4, PROTOCOL_5] {
        for end in 0..bytes.len() {
            assert!(Pickle::read(&bytes[..end], &mut Room::unlimited()).is_err(), "{end}");
        }
        for at in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                let mut changed = bytes.to_vec();
                changed[at] = byte;
                let _ = Pickle::read(&changed, &mut Room::unlimited());
            }
        }
    }
}

/// Invariant (input): A pickle takes memory in proportion to its size.
#[test]
fn depth_and_shared_values_cost_only_their_bytes() {
    // 100 000 lists inside of each other.
    let mut deep = b"\x80\x04".to_vec();
    deep.extend(std::iter::repeat_n(b']', 100_000));
    deep.extend(std::iter::repeat_n(b'a', 99_999));
    deep.push(b'.');
    assert_eq!(Pickle::read(&deep, &mut Room::unlimited()).unwrap().values.len(), 100_003);
    // Each list holds the one before twice: 2^200 items, if they were copied.
    let mut laughs = b"\x80\x02]q\0".to_vec();
    for _ in 0..200 {
        laughs.extend(b"](h\0h\0eq\0");
    }
    laughs.push(b'.');
    assert_eq!(Pickle::read(&laughs, &mut Room::unlimited()).unwrap().values.len(), 204);
    // A list in itself.
    let pickle = Pickle::read(b"\x80\x02]q\0h\0a.", &mut Room::unlimited()).unwrap();
    assert_eq!(pickle.items(pickle.root()), [pickle.root()]);
}

/// A `dict` of `{'k0': 0, 'k1': 1, …}` whose last pairs repeat the first keys.
fn long_dict(pairs: u32) -> Vec<u8> {
    let mut bytes = b"\x80\x02}(".to_vec();
    let mut pair = |key: u32, value: u32| {
        let name = format!("k{key}");
        bytes.extend([&b"X"[..], &(name.len() as u32).to_le_bytes(), name.as_bytes()].concat());
        bytes.extend([&b"J"[..], &value.to_le_bytes()].concat());
    };
    (0..pairs).for_each(|key| pair(key, key));
    (0..pairs / 2).for_each(|key| pair(key, key + 1_000_000));
    bytes.extend(b"u.");
    bytes
}

#[test]
fn the_last_of_equal_keys_counts_in_dicts_of_any_length() {
    for pairs in [2, MAX_SEARCHED as u32, 1000] {
        let bytes = long_dict(pairs);
        let pickle = Pickle::read(&bytes, &mut Room::unlimited()).unwrap();
        let value = |key: u32| pickle.integer(pickle.field(pickle.root(), &format!("k{key}"))?);
        for key in 0..pairs {
            let last = if key < pairs / 2 { key + 1_000_000 } else { key };
            assert_eq!(value(key), Some(i64::from(last)), "{pairs} {key}");
        }
        assert_eq!(value(pairs), None);
        assert_eq!(pickle.field(pickle.root(), ""), None);
    }
}
