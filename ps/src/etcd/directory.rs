//! The log of generations and the list of living servers in etcd.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::calls::{CallError, Calls};
use super::messages::{
    Compare, CompareTarget, CompareWith, KeyValue, Operation, PutRequest, RangeRequest,
    RangeResponse, RequestOp, SortOrder, TxnRequest, TxnResponse,
};
use super::options::EtcdOptions;
use super::{registration, watching};
use crate::error::{Result, start_error};
use crate::map::{
    ClusterMap, Directory, MapEntry, Member, Notice, Upkeep, entry_name, read_entry, run_hash,
};
use zillion_store::Network;

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// A directory in etcd.
#[derive(Debug)]
pub(super) struct EtcdDirectory {
    network: Arc<Network>,
    calls: Arc<Calls>,
    keys: Arc<Keys>,
    lease_seconds: u64,
}

/// The keys of a cluster.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    fn generations(&self, run: &str) -> String {
        format!("{}/generations/{}/", self.prefix, run_hash(run))
    }

    fn entry(&self, run: &str, number: u64) -> String {
        format!("{}{}", self.generations(run), entry_name(number))
    }

    /// Returns the beginning of the keys of all servers.
    pub(super) fn servers(&self) -> String {
        format!("{}/servers/", self.prefix)
    }

    pub(super) fn server(&self, id: u32) -> String {
        format!("{}{id}", self.servers())
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl EtcdDirectory {
    pub(super) fn open(options: &EtcdOptions) -> Result<Self> {
        let network = Network::start("zillion-etcd")
            .map_err(|e| start_error(format!("cannot start the thread for etcd: {e}")))?;
        let network = Arc::new(network);
        let settings = options.clone();
        let calls = network.wait(async move { Calls::new(&settings) });
        let calls = calls.ok_or_else(|| start_error("the thread for etcd has ended"))??;
        let keys = Arc::new(Keys { prefix: options.prefix.clone() });
        let lease_seconds = options.lease_seconds;
        Ok(Self { network, calls: Arc::new(calls), keys, lease_seconds })
    }

    /// Makes a call on the thread of the network, and waits for its result.
    fn call<T: Send + 'static, F>(&self, make: impl FnOnce(Arc<Calls>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let result = self.network.wait(make(self.calls.clone()));
        let result = result.ok_or_else(|| start_error("the thread for etcd has ended"))?;
        result.map_err(|error| error.into_error(&self.calls))
    }

    /// Reads the keys from `key` up to `end`.
    fn range(&self, request: RangeRequest) -> Result<Vec<KeyValue>> {
        let response: RangeResponse =
            self.call(|calls| async move { calls.unary(RANGE, request).await })?;
        Ok(response.kvs)
    }
}

impl ClusterMap for EtcdDirectory {
    fn newest(&self, run: &str) -> Result<u64> {
        let key = self.keys.generations(run);
        let newest = self.range(RangeRequest {
            limit: 1,
            sort_order: SortOrder::Descend.into(),
            keys_only: true,
            ..range_below(&key)
        })?;
        let Some(newest) = newest.first() else { return Ok(0) };
        let name = String::from_utf8_lossy(&newest.key);
        let number = name.strip_prefix(&key).and_then(|number| number.parse().ok());
        number.ok_or_else(|| {
            start_error(format!(
                "the key `{name}` in etcd is not an entry of the log of generations; remove it, or \
                 use another `ps.etcd_prefix`"
            ))
        })
    }

    fn entry(&self, run: &str, number: u64) -> Result<Option<MapEntry>> {
        let key = self.keys.entry(run, number);
        let found = self.range(RangeRequest { key: key.clone().into(), ..Default::default() })?;
        found.first().map(|found| read_entry(&key, &found.value)).transpose()
    }

    fn create(&self, entry: &MapEntry) -> Result<bool> {
        let key = self.keys.entry(&entry.run, entry.generation);
        let value = entry.to_bytes();
        let request = create_or_read(&key, &value, 0);
        let (succeeded, found) =
            self.call(|calls| async move { run_txn(&calls, request).await })?;
        // A call whose answer was lost may have created the entry.
        let created = succeeded || found.is_some_and(|found| found.value == value);
        if created {
            tracing::info!(generation = entry.generation, key, "etcd: generation recorded");
        }
        Ok(created)
    }
}

impl Directory for EtcdDirectory {
    fn members(&self) -> Result<BTreeMap<u32, Member>> {
        let keys = self.keys.clone();
        self.call(|calls| async move { Ok(list(&calls, &keys).await?.0) })
    }

    fn register(&self, member: Member) -> Result<Upkeep> {
        let member = Member { lease_seconds: self.lease_seconds, ..member };
        registration::begin(&self.network, self.calls.clone(), self.keys.clone(), member)
    }

    fn watch(&self, known: BTreeMap<u32, Member>, notice: Notice) -> Upkeep {
        watching::begin(&self.network, self.calls.clone(), self.keys.clone(), known, notice)
    }

    fn name(&self) -> String {
        format!("etcd at {} below `{}`", self.calls.addresses(), self.keys.prefix)
    }
}

/// Returns the request for all keys that begin with a text, which must end with `/`.
pub(super) fn range_below(start: &str) -> RangeRequest {
    RangeRequest { key: start.into(), range_end: end_of(start), ..Default::default() }
}

/// Returns the first key after all keys that begin with a text, which must end with `/`.
pub(super) fn end_of(start: &str) -> Vec<u8> {
    let mut end = start.as_bytes().to_vec();
    // The sign after `/`.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Returns the transaction that creates a key under a lease, or reads the key if it exists.
pub(super) fn create_or_read(key: &str, value: &[u8], lease: i64) -> TxnRequest {
    put_if(key, CompareTarget::Create, CompareWith::CreateRevision(0), value, lease)
}

/// Returns the transaction that replaces a value under a lease, or reads the key if it has another
/// value.
pub(super) fn replace_or_read(key: &str, old: &[u8], value: &[u8], lease: i64) -> TxnRequest {
    put_if(key, CompareTarget::Value, CompareWith::Value(old.to_vec()), value, lease)
}

fn put_if(
    key: &str,
    target: CompareTarget,
    with: CompareWith,
    value: &[u8],
    lease: i64,
) -> TxnRequest {
    let put = PutRequest { key: key.into(), value: value.to_vec(), lease };
    let read = RangeRequest { key: key.into(), ..Default::default() };
    let compare = Compare { result: 0, target: target.into(), key: key.into(), with: Some(with) };
    TxnRequest {
        compare: vec![compare],
        success: vec![RequestOp { request: Some(Operation::Put(put)) }],
        failure: vec![RequestOp { request: Some(Operation::Range(read)) }],
    }
}

/// Runs a transaction of [`create_or_read`] or [`replace_or_read`]. Returns whether it has put the
/// value, and the key as it is if not.
pub(super) async fn run_txn(
    calls: &Calls,
    request: TxnRequest,
) -> Result<(bool, Option<KeyValue>), CallError> {
    let response: TxnResponse = calls.unary(TXN, request).await?;
    let found = response.responses.into_iter().filter_map(|response| response.range);
    Ok((response.succeeded, found.flat_map(|range| range.kvs).next()))
}

/// Reads all servers, and the revision of the store at which they were read. A key that is not a
/// server of this version of the program is left out with a warning.
pub(super) async fn list(
    calls: &Calls,
    keys: &Keys,
) -> Result<(BTreeMap<u32, Member>, i64), CallError> {
    let response: RangeResponse = calls.unary(RANGE, range_below(&keys.servers())).await?;
    let revision = response.header.map_or(0, |header| header.revision);
    let members = response.kvs.iter().filter_map(|kv| read_member(keys, kv));
    Ok((members.map(|member| (member.id, member)).collect(), revision))
}

/// Reads a server. Returns `None` and writes a warning if the key or the value is not one.
pub(super) fn read_member(keys: &Keys, kv: &KeyValue) -> Option<Member> {
    let member: Option<Member> = serde_json::from_slice(&kv.value).ok();
    let member = member.filter(|member| keys.server(member.id).as_bytes() == kv.key);
    if member.is_none() {
        let key = String::from_utf8_lossy(&kv.key);
        tracing::warn!(%key, "the key in etcd is not a server of this version of the program");
    }
    member
}
