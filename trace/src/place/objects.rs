//! Objects of S3, Google Cloud Storage, Azure and web servers.
//!
//! Credentials come from the environment of each store's own tools (`AWS_…`, `GOOGLE_…`, `AZURE_…`) and are in no message.
//! Requests are repeated with growing pauses after errors that may pass.

use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig};

use super::blocks::Blocks;
use super::entry::{Entry, Kind};
use super::process::{known, runtime};
use super::reasons::explain;
use super::retry::{RETRIES, RETRY_TIME, repeated};
use crate::lock::lock;
use crate::url::Url;

/// Objects whose size is kept from a listing, so that it need not be asked for again.
const MAX_LISTED: usize = 1 << 18;

/// A store, and the key of an object or prefix in it.
struct Place<'a> {
    url: Url<'a>,
    store: Arc<dyn ObjectStore>,
    key: Key,
}

impl<'a> Place<'a> {
    fn of(url: Url<'a>) -> io::Result<Self> {
        let key = Key::parse(url.key).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        let root = format!("{}://{}", url.scheme, url.host);
        // Clients are made with its choice of TLS.
        runtime()?;
        let mut known = known();
        let store = match known.stores.get(&root) {
            Some(store) => store.clone(),
            None => {
                let store = connect(url, &root).map_err(|error| explain(&error, url.host))?;
                known.stores.insert(root, store.clone());
                store
            }
        };
        Ok(Self { url, store, key })
    }

    fn name(&self, key: &Key) -> String {
        format!("{}://{}/{key}", self.url.scheme, self.url.host)
    }

    fn explained(&self) -> impl Fn(object_store::Error) -> io::Error {
        let host = self.url.host.to_string();
        move |error| explain(&error, &host)
    }

    /// The object's size and version; `None` if there is no object of this name.
    fn object(&self) -> io::Result<Option<ObjectMeta>> {
        if self.url.key.is_empty() {
            return Ok(None);
        }
        if let Some(object) = known().objects.get(&self.name(&self.key)) {
            return Ok(Some(object.clone()));
        }
        match runtime()?.block_on(repeated(|| self.store.head(&self.key))) {
            Ok(object) => Ok(Some(object)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.explained()(error)),
        }
    }
}

fn connect(url: Url<'_>, root: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    let retry = RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_TIME, ..RetryConfig::default() };
    Ok(match url.scheme {
        "s3" | "s3a" => {
            // An endpoint that is named without encryption is meant so.
            let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
            let endpoint = endpoints.iter().find_map(|name| std::env::var(name).ok());
            let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
            let builder = AmazonS3Builder::from_env().with_bucket_name(url.host).with_retry(retry);
            Arc::new(if is_plain { builder.with_allow_http(true) } else { builder }.build()?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(url.host);
            Arc::new(builder.with_retry(retry).build()?)
        }
        "http" | "https" => {
            let client = ClientOptions::new().with_allow_http(true);
            Arc::new(HttpBuilder::new().with_url(root).with_client_options(client).with_retry(retry).build()?)
        }
        _ => Arc::new(MicrosoftAzureBuilder::from_env().with_url(root).with_retry(retry).build()?),
    })
}

pub(super) fn kind(url: Url<'_>) -> io::Result<Kind> {
    let place = Place::of(url)?;
    if let Some(object) = place.object()? {
        return Ok(Kind::File { bytes: object.size });
    }
    if url.is_web() {
        return Err(no_object());
    }
    // The listing of a missing bucket fails, and that of a missing prefix is empty.
    entries_of(&place).map(|_| Kind::Directory)
}

pub(super) fn entries(directory: &Path, url: Url<'_>) -> io::Result<Vec<Entry>> {
    if url.is_web() {
        let why = "a web server lists no directories; name each file";
        return Err(io::Error::new(ErrorKind::Unsupported, why));
    }
    let (names, directories) = entries_of(&Place::of(url)?)?;
    let entry = |name: String, is_directory| Entry { path: directory.join(name), is_directory };
    let files = names.into_iter().map(|name| entry(name, false));
    Ok(files.chain(directories.into_iter().map(|name| entry(name, true))).collect())
}

/// The names of the objects and of the prefixes directly below a prefix.
fn entries_of(place: &Place<'_>) -> io::Result<(Vec<String>, Vec<String>)> {
    let prefix = (!place.url.key.is_empty()).then_some(&place.key);
    let listing = repeated(|| place.store.list_with_delimiter(prefix));
    let listing = runtime()?.block_on(listing).map_err(place.explained())?;
    if prefix.is_some() && listing.objects.is_empty() && listing.common_prefixes.is_empty() {
        return Err(no_object());
    }
    let last = |key: &Key| key.filename().map(String::from);
    let directories = listing.common_prefixes.iter().filter_map(last).collect();
    let mut known = known();
    let mut names = Vec::with_capacity(listing.objects.len());
    for object in listing.objects {
        // Some tools mark a directory by an empty object of its name.
        let Some(name) = last(&object.location).filter(|_| object.location != place.key) else { continue };
        names.push(name);
        if known.objects.len() < MAX_LISTED {
            known.objects.insert(place.name(&object.location), object);
        }
    }
    Ok((names, directories))
}

pub(super) fn open(url: Url<'_>) -> io::Result<Object> {
    let place = Place::of(url)?;
    let object = place.object()?.ok_or_else(no_object)?;
    let blocks = Blocks::new(place.store, object, url.host.to_string());
    Ok(Object { blocks: Arc::new(Mutex::new(blocks)), at: 0 })
}

fn no_object() -> io::Error {
    io::Error::new(ErrorKind::NotFound, "there is no such object, and no object below this name")
}

/// An object that is open to be read. Its blocks are kept for as long as it or a part of it is open.
#[derive(Clone, Debug)]
pub struct Object {
    blocks: Arc<Mutex<Blocks>>,
    /// The place from which the next bytes are read.
    at: u64,
}

impl Object {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        lock(&self.blocks)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.blocks().bytes()
    }

    pub(super) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut blocks = self.blocks();
        if buffer.is_empty() || at >= blocks.bytes() {
            return Ok(0);
        }
        let (block, from) = blocks.block_with(at)?;
        let got = buffer.len().min(block.len() - from);
        buffer[..got].copy_from_slice(&block[from..from + got]);
        Ok(got)
    }

    /// A reader of the same object from byte `at` on.
    pub(super) fn reader_from(&self, at: u64) -> Box<dyn Read> {
        Box::new(BufReader::new(Self { at, ..self.clone() }))
    }

    pub(super) fn range(&self, start: u64, length: usize) -> io::Result<Bytes> {
        let mut room = vec![0; length];
        Self { at: start, ..self.clone() }.read_exact(&mut room)?;
        Ok(room.into())
    }
}

impl Read for Object {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.read_at(buffer, self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl Seek for Object {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(offset) => (self.at, offset),
            SeekFrom::End(offset) => (self.size_bytes(), offset),
        };
        self.at = base.checked_add_signed(offset).ok_or(ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
