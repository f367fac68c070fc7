//! Exports that the tests write.

use std::path::{Path, PathBuf};

use formats::nsys::NsysSource;
use model::{Kind, RankData};
use rusqlite::Connection;

/// Two processes, as in `globalPid`.
pub(crate) const ONE: i64 = 0x0100_0000_4600_0000;
pub(crate) const OTHER: i64 = 0x0100_0000_4700_0000;

/// Names of kernels and calls, by their ids.
pub(crate) const STRINGS: &str = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)'),
        (3, 'cudaLaunchKernel_v7000'), (4, 'ncclAllReduce'), (5, 'ncclCommInitRank'), (6, 'NCCL'),
        (7, 'ncclDevKernel_SendRecv(x)'), (8, 'ncclGroupStart'), (9, 'ncclGroupEnd'), (10, 'ncclSend'),
        (11, 'ncclRecv');";

pub(crate) const KERNELS: &str =
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER,
    gridZ INTEGER, added_by_a_tool TEXT);";
const CALLS: &str = "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER);";
const RANGES: &str = "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData TEXT);";
const SESSION: &str = "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, systemClockNs INTEGER);
    INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1000000, 5000);
    CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
    INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node-a'),
        ('DeviceEnvironment', 'API_KEY=hunter2' || char(10) || 'HOME=/root');";

/// Writes a database.
pub(crate) fn database(directory: &Path, name: &str, sql: &[&str]) -> PathBuf {
    let path = directory.join(name);
    let connection = Connection::open(&path).unwrap();
    sql.iter().for_each(|sql| connection.execute_batch(sql).unwrap());
    path
}

/// The statements of an export of two processes whose calls have the same correlation ids, with nulls, an open range, a mark, a twin
/// of a call, a process without a device, and a secret.
pub(crate) fn statements() -> Vec<String> {
    let rows = format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 5, {ONE}, 1, 4, 2, 1, ''),
            (150, 260, 0, 7, 5, {OTHER}, 1, NULL, 2, 1, ''), (300, 400, 0, 7, 6, {OTHER}, 2, 1, 1, 1, ''),
            (9223372036854775807, 5, 0, 7, 6, {OTHER}, 2, 1, 1, 1, ''), (NULL, 5, 0, 7, 6, {OTHER}, 2, 1, 1, 1, ''),
            (1, 2, 0, 7, 9, NULL, 1, 1, 1, 1, '');
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (20, 30, 0, {ONE} + 71, 5, 3), (21, 29, 67, {ONE} + 71, 5, 3),
            (31, 32, 67, {ONE} + 71, 8, 3), (40, 50, 1, {OTHER} + 72, 5, 3), (1, 2, 0, NULL, 5, 3),
            (1, 2, 0, {OTHER} + 0x1000001, 5, 3);
         INSERT INTO NVTX_EVENTS VALUES (10, 90, 59, 'aten::mm, op_id = 9', {ONE} + 71, NULL, 0, NULL),
            (5, 95, 59, 'ProfilerStep#3', {ONE} + 71, NULL, 0, NULL), (5, NULL, 59, 'open', {ONE} + 71, NULL, 0, NULL),
            (6, NULL, 34, 'mark', {ONE} + 71, NULL, 0, NULL), (7, NULL, 75, 'NCCL', {ONE} + 71, NULL, 1, NULL),
            (15, 25, 60, 'loose', {ONE} + 71, NULL, 0, NULL);
         CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'WORLD_SIZE=\"2\"'),
            ('PROCESS_0:ENVIRONMENT_VARIABLE', 'API_KEY=\"hunter2\"');"
    );
    [STRINGS, KERNELS, CALLS, RANGES, SESSION].into_iter().map(String::from).chain([rows]).collect()
}

/// An export by [`statements`].
pub(crate) fn export(directory: &Path, name: &str) -> PathBuf {
    let all = statements();
    database(directory, name, &all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// An export of one process with some kernels and whatever `more` adds.
pub(crate) fn small(directory: &Path, name: &str, more: &str) -> PathBuf {
    let kernel = format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 5, {ONE}, 1, 4, 2, 1, ''), (300, 400, 0, 7, 6, {ONE}, 2, 1, 1, 1, '');"
    );
    database(directory, name, &[STRINGS, KERNELS, CALLS, RANGES, &kernel, more])
}

/// Opens exports.
pub(crate) fn opened(paths: &[PathBuf]) -> NsysSource {
    NsysSource::open(paths).unwrap()
}

/// The number of rows of a kind.
pub(crate) fn rows(data: &RankData, kind: Kind) -> usize {
    data.events.kind.iter().filter(|of_row| **of_row == kind).count()
}

/// What was left out, with its amount.
pub(crate) fn omitted(data: &RankData) -> Vec<(&str, &str, Option<i64>)> {
    data.omissions.iter().map(|omission| (&*omission.kind, &*omission.what, omission.amount)).collect()
}

pub(crate) fn name(data: &RankData, row: usize) -> &str {
    &data.names[data.events.name[row] as usize]
}
