//! The arrows of small crates that are written here, and of forms of `use` that are easily missed.

use super::{Modules, Room, shown};

fn parse(files: &[(&str, &str)]) -> Modules {
    let owned: Vec<(String, String)> = files.iter().map(|(f, t)| (f.to_string(), t.to_string())).collect();
    Modules::parse(&owned)
}

/// `from -> to` of every arrow.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    let mut found: Vec<String> =
        parse(files).arrows.iter().map(|a| format!("{} -> {}", shown(&a.from), shown(&a.to))).collect();
    found.sort();
    found
}

const ROOMS: &[Room<'_>] = &[("base", &[]), ("judge", &["base"]), ("render", &["base", "judge"])];

#[test]
fn every_form_of_use_is_an_arrow() {
    let forms = [
        "use crate::a::b::Item;",
        "pub use crate::a::b::Item;",
        "pub(crate) use crate::a::b::Item as Other;",
        "use crate::{a::{b::{Item, self}}, c as d};",
        "use crate::a\n    ::b // comment\n    ::{\n    Item,\n};",
        "use crate::a::b::*;",
        "use super::a::b::Item;",
        "use super::super::a::b::Item;",
        "use crate::a::b; fn f() { b::item() }",
        "use crate::a; fn f() { a::b::item() }",
        "use crate::a as other; fn f() -> other::b::Item {}",
        "fn f() { crate::a::b::item() }",
        "fn f() { vec![crate::a::b::Item {}; 3] }",
        "fn f<T: crate::a::b::Item>() {}",
        "fn f() { use crate::a::b::Item; }",
        "mod inner { use super::super::a::b::Item; }",
        "mod inner { use crate::a::b::Item; }",
        "macro_rules! m { () => { $crate::a::b::item() } }",
        "#[cfg(not(test))] use crate::a::b::Item;",
        "#[cfg(any(test, feature = \"x\"))] use crate::a::b::Item;",
    ];
    for form in forms {
        let deep = form.contains("super::super") && !form.contains("mod inner");
        let file = if deep { "x/y.rs" } else { "x.rs" };
        let found = arrows(&[("lib.rs", ""), (file, form), ("a.rs", ""), ("a/b.rs", "pub struct Item;"), ("c.rs", "")]);
        let from = if deep { "x::y" } else { "x" };
        assert!(found.contains(&format!("{from} -> a::b")), "{form}: {found:?}");
    }
}

#[test]
fn what_is_no_import_is_no_arrow() {
    let none = [
        "// use crate::a::Item;\n/* use crate::a::Item; /* */ use crate::a::Item; */",
        "/// [`crate::a::Item`]\nfn f() {}",
        "fn f() { \"crate::a::item \\\" crate::a::item\" }",
        "fn f() { r#\"\" crate::a::item()\"# }",
        "fn f() { ('\"', '\\'', b'\"', crate_a) }",
        "use ::a::Item;",
        "use other_crate::a::Item;",
        "fn f() { ::a::item() }",
        "#[cfg(test)] use crate::a::Item;",
        "#[cfg(test)]\n#[derive(Debug)] pub struct S { x: crate::a::Item }",
        "#[cfg(test)] mod tests { use crate::a::Item; #[test] fn f() { crate::a::item() } }",
        "#[cfg(all(test, loom))] mod model;",
        "fn f() -> impl Iterator + use<'_> {}",
        "fn f<'a>(x: &'a str) {}",
    ];
    for text in none {
        let files = [("lib.rs", ""), ("x.rs", text), ("x/model.rs", "use crate::a::Item;"), ("a.rs", "")];
        let files = if text.contains("mod model") { &files[..] } else { &[files[0], files[1], files[3]] };
        assert_eq!(arrows(files), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn tests_are_left_out_with_their_files() {
    let found = parse(&[
        ("lib.rs", "mod a; mod x; #[cfg(test)] mod drawn;"),
        ("x.rs", "#[cfg(test)]\nmod tests; mod kept;"),
        ("x/kept.rs", "use crate::a::Item;"),
        ("x/tests.rs", "use crate::a::Item;"),
        ("x/tests/deep.rs", "use crate::a::Item;"),
        ("drawn.rs", "use crate::a::Item;"),
        ("bin/command.rs", "use crate::a::Item;"),
        ("main.rs", "fn main() {}"),
        ("a.rs", "pub struct Item;"),
    ]);
    let names: Vec<String> = found.modules.iter().map(|m| shown(m)).collect();
    assert_eq!(names, ["crate", "a", "x", "x::kept"]);
    assert_eq!(found.arrows.len(), 1);
}

#[test]
fn an_import_through_a_re_export_goes_to_the_definition() {
    let files = [
        ("lib.rs", "mod a; pub use a::{Item as Thing, free};"),
        ("a.rs", "mod b; mod c; pub use b::Item; pub use c::*; pub fn own() {}"),
        ("a/b.rs", "pub struct Item;"),
        ("a/c.rs", "pub fn free() {}"),
        ("x.rs", "use crate::Thing;"),
        ("y.rs", "use crate::free;"),
        ("z/mod.rs", "use crate::a::own;"),
    ];
    let found = arrows(&files);
    let expected = ["a -> a::b", "a -> a::c", "crate -> a::b", "crate -> a::c", "x -> a::b", "y -> a::c", "z -> a"];
    assert_eq!(found, expected);
}

/// A re-export never hides that a module uses what the crate's root defines.
#[test]
fn a_definition_in_the_root_is_an_arrow_to_the_root() {
    assert_eq!(arrows(&[("lib.rs", "pub const LIMIT: usize = 1;"), ("x.rs", "use crate::LIMIT;")]), ["x -> crate"]);
}

#[test]
fn an_import_against_the_table_is_a_back_arrow() {
    let fine = [
        ("lib.rs", "pub use render::show;"),
        ("error.rs", "pub enum Error {}"),
        ("base.rs", "use crate::error::Error;"),
        ("judge.rs", ""),
        ("judge/verdict.rs", "use crate::base::Base;\nuse super::Common;"),
        ("render.rs", "use crate::judge::verdict;\nfn show() { verdict::Verdict {} }"),
    ];
    assert_eq!(parse(&fine).back_arrows(ROOMS), Vec::<String>::new());
    let mut back = fine;
    back[4].1 = "use crate::base::Base;\nuse crate::render;\nfn f() { render::show() }";
    let expected = ["judge/verdict.rs:2: judge::verdict uses render; judge may not import render"];
    assert_eq!(parse(&back).back_arrows(ROOMS), expected);
    let mut error = fine;
    error[1].1 = "pub enum Error { Wrong(crate::base::Base) }";
    let expected = ["error.rs:1: error uses base; error may not import base"];
    assert_eq!(parse(&error).back_arrows(ROOMS), expected);
    let mut root = fine;
    root[0].1 = "pub const LIMIT: usize = 1;";
    root[3].1 = "use crate::LIMIT;";
    let expected = ["judge.rs:1: judge uses crate; judge may not import crate"];
    assert_eq!(parse(&root).back_arrows(ROOMS), expected);
    let attic = [("lib.rs", ""), ("attic.rs", ""), ("attic/deep.rs", "")];
    assert_eq!(parse(&attic).back_arrows(ROOMS), ["attic is in no room of the table"]);
}

#[test]
fn a_parent_and_a_child_that_use_each_other_are_a_circle() {
    let mut files = [("lib.rs", "mod p;"), ("p.rs", "mod a; use a::A; pub struct P;"), ("p/a.rs", "pub struct A;")];
    assert_eq!(parse(&files).components(), []);
    files[2].1 = "use super::P; pub struct A;";
    assert_eq!(parse(&files).components().len(), 1);
}

#[test]
fn a_circle_is_found_with_its_arrows() {
    let mut files = [
        ("lib.rs", "mod p; mod q;"),
        ("p.rs", "mod a;"),
        ("p/a.rs", "use crate::q::Q; pub struct A;"),
        ("q.rs", "mod r; pub struct Q;"),
        ("q/r.rs", "pub struct R;"),
    ];
    assert_eq!(parse(&files).components(), []);
    files[3].1 = "mod r; pub struct Q; use crate::p::a::A;";
    let found = parse(&files).components();
    let expected = "2 modules reach each other: p::a, q\n    p::a -> q  (p/a.rs:1)\n    q -> p::a  (q.rs:1)";
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}
