//! Object stores in a build without the feature `cloud`: each call says how to build with it.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::entry::{Entry, Kind};
use crate::url::Url;

fn unsupported<T>(url: Url<'_>) -> io::Result<T> {
    let why = format!("this build reads no {}:// paths; build it with `--features cloud`", url.scheme);
    Err(io::Error::new(ErrorKind::Unsupported, why))
}

pub(super) fn kind(url: Url<'_>) -> io::Result<Kind> {
    unsupported(url)
}

pub(super) fn entries(_: &Path, url: Url<'_>) -> io::Result<Vec<Entry>> {
    unsupported(url)
}

pub(super) fn open(url: Url<'_>) -> io::Result<Object> {
    unsupported(url)
}

/// An object; there is none in this build.
#[derive(Debug)]
pub enum Object {}

impl Object {
    pub(super) fn size_bytes(&self) -> u64 {
        match *self {}
    }

    pub(super) fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn reader_from(&self, _: u64) -> Box<dyn Read> {
        match *self {}
    }

    pub(super) fn range(&self, _: u64, _: usize) -> io::Result<bytes::Bytes> {
        match *self {}
    }
}

impl Read for Object {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Seek for Object {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        match *self {}
    }
}
