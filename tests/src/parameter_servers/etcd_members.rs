//! Tests of an etcd with three members, one of which is lost while a run goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use zillion_ps::{EtcdOptions, open_etcd};

use super::etcd::{PREFIX, start_behind, start_server, start_trainer, wait_until};
use super::etcd_process::EtcdProcess;
use super::operators::ps;
use super::proxy::{Act, Way, once, op};
use super::runs::{outcome, small_place, train_alone};
use crate::harness::{Workplace, stdout};

/// The time after which the leases of two seconds have expired, if nobody has kept them.
const LEASES: Duration = Duration::from_secs(5);

/// Trains while a member of etcd is lost. The run must not notice it. After that, a server is lost
/// and comes back elsewhere, which the run must learn from the other members.
fn lose_a_member(place: &Workplace, output: &str, lose: impl FnOnce(&mut EtcdProcess)) {
    let Some(mut members) = EtcdProcess::start_members() else { return };
    let endpoints = members.each_ref().map(|member| member.endpoint.clone());
    let list = endpoints.join(",");
    let _other = start_server(place, &list, 0, "127.0.0.1:0", &[]);
    let held = once(Way::Question, op::APPLY, 7, Act::Hold);
    let (mut server, proxy) = start_behind(place, &list, 1, held);
    // Without the lease, the trainer would wait for a minute.
    let late = ["--set", "ps.deadline_seconds=60"];
    let mut trainer = start_trainer(place, output, &list, (0, 1), 2, &late);
    proxy.wait_for_disturbance();

    let prefix = PREFIX.to_owned();
    let others = EtcdOptions { prefix, ..EtcdOptions::new(endpoints[1..].to_vec()) };
    let others = open_etcd(&others).expect("the settings are right");
    let registered = others.members().expect("etcd answers");
    let boots: BTreeMap<u32, u64> = registered.iter().map(|(&id, m)| (id, m.boot)).collect();
    assert_eq!(boots.len(), 2);
    // All programs ask the first member first.
    lose(&mut members[0]);
    std::thread::sleep(LEASES);
    wait_until(&*others, "registered by the other members", |found| *found == boots);
    assert!(!trainer.said().contains("goes on without etcd"), "{}", trainer.said());
    let found = stdout(&ps(&["status", "--etcd", &list, "--etcd-prefix", PREFIX]));
    assert!(found.contains(&format!("server 0 at {}", registered[&0].address)), "{found}");

    server.kill();
    trainer.wait_for(&format!("server 1 at {} went: its lease has expired", proxy.address));
    trainer.wait_for("server 1 is not registered; start it");
    let again = start_server(place, &list, 1, "127.0.0.1:0", &[]);
    let ended = trainer.end();
    assert_eq!(ended.succeeded()["rewinds"].as_u64(), Some(1), "{}", ended.said);
    let entry = others.entry(output, 2).expect("etcd answers").expect("generation 2 is recorded");
    assert_eq!(entry.servers[1].0, again.address);
    assert_eq!(outcome(place, output), outcome(place, "alone"));
}

#[test]
fn a_run_goes_on_while_a_member_of_etcd_is_dead() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    lose_a_member(&place, "killed", EtcdProcess::kill);
}

#[test]
fn a_run_goes_on_while_a_member_of_etcd_hangs() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    lose_a_member(&place, "stopped", |member| member.stop());
}
