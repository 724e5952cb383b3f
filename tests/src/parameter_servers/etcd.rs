//! Tests of servers and trainers that find each other in etcd. Each etcd is a process of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;
use zillion_ps::conformance::check_map;
use zillion_ps::{Directory, Error, EtcdOptions, open_etcd};

use super::etcd_process::{EtcdProcess, free_port};
use super::operators::{ps, ps_fails, ps_json};
use super::proxy::{Act, FrameProxy, PATIENCE, Way, once, op};
use super::runs::{Ended, TrainerProcess, outcome, replaced, small_place, train_alone};
use super::servers::ServerProcess;
use crate::harness::{JOB, Workplace, stderr, stdout};

/// The prefix of the keys of the tests.
pub(crate) const PREFIX: &str = "/zillion/e2e";

/// Starts a server that listens on an address and registers in etcd.
pub(super) fn start_server(
    place: &Workplace,
    endpoint: &str,
    id: usize,
    listen: &str,
    more: &[&str],
) -> ServerProcess {
    let id = id.to_string();
    let usual = ["--id", &id, "--etcd", endpoint, "--etcd-prefix", PREFIX];
    let more = [&usual[..], &["--etcd-lease-seconds", "2"], more].concat();
    ServerProcess::start_at(&place.path(""), listen, &more, None)
}

/// Starts servers on free ports.
fn start_servers(place: &Workplace, etcd: &EtcdProcess, count: usize) -> Vec<ServerProcess> {
    (0..count).map(|id| start_server(place, &etcd.endpoint, id, "127.0.0.1:0", &[])).collect()
}

/// Starts a server behind a proxy, whose address is the one that the server registers.
pub(super) fn start_behind(
    place: &Workplace,
    endpoint: &str,
    id: usize,
    decide: impl FnMut(&super::proxy::Seen) -> Act + Send + 'static,
) -> (ServerProcess, FrameProxy) {
    let listen = format!("127.0.0.1:{}", free_port());
    let proxy = FrameProxy::start(&listen, decide);
    let server = start_server(place, endpoint, id, &listen, &["--advertise", &proxy.address]);
    (server, proxy)
}

/// Starts a trainer that finds its servers in etcd.
pub(super) fn start_trainer(
    place: &Workplace,
    output: &str,
    endpoint: &str,
    (index, trainers): (usize, usize),
    servers: usize,
    more: &[&str],
) -> TrainerProcess {
    let (place_of, count) = (format!("{index}/{trainers}"), servers.to_string());
    let store = place.text("");
    let usual = [
        "--ps-etcd",
        endpoint,
        "--ps-etcd-prefix",
        PREFIX,
        "--ps-count",
        &count,
        "--ps-store",
        &store,
        "--trainer",
        &place_of,
        "--json",
    ];
    let patience = ["--set", "ps.wait_seconds=40", "--set", "ps.rewinds=100"];
    let command = place.train(output, &[&usual[..], &patience, more].concat());
    TrainerProcess::spawn(place, command)
}

/// Asserts that a run was not disturbed.
fn assert_undisturbed(ended: &Ended) {
    let report = ended.succeeded();
    assert_eq!(report["rewinds"].as_u64().unwrap_or(0), 0, "{report}\n{}", ended.said);
}

/// Waits until a directory meets a condition.
pub(super) fn wait_until(
    directory: &dyn Directory,
    what: &str,
    is_met: impl Fn(&BTreeMap<u32, u64>) -> bool,
) {
    let began = Instant::now();
    loop {
        let boots = directory.members().map(|members| {
            members.into_iter().map(|(id, member)| (id, member.boot)).collect::<BTreeMap<_, _>>()
        });
        if boots.as_ref().is_ok_and(&is_met) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "not {what}: {boots:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn three_servers_and_two_trainers_meet_in_etcd() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let place = small_place();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    // The trainers wait for the servers, and trainer 1 for trainer 0.
    let second = start_trainer(&place, "over", &etcd.endpoint, (1, 2), 3, &[]);
    let mut servers = start_servers(&place, &etcd, 3);
    let first = start_trainer(&place, "over", &etcd.endpoint, (0, 2), 3, &[]);
    for trainer in [first, second] {
        assert_undisturbed(&trainer.end());
    }
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));

    let directory = etcd.directory(PREFIX);
    let members = directory.members().unwrap();
    let entry = directory.entry("over", 1).unwrap().expect("generation 1 is recorded");
    let registered: Vec<(String, u64)> =
        members.values().map(|member| (member.address.clone(), member.boot)).collect();
    assert_eq!((entry.servers, entry.trainers, entry.bounds.len()), (registered, 2, 4));
    assert_eq!(directory.newest("over").unwrap(), 1);
    assert!(!place.path("ps/generations").exists(), "the log is in etcd and not in the store");
    // A server that ends in good order does not wait for its lease.
    servers[1].signal("-TERM");
    assert!(servers[1].wait());
    assert_eq!(directory.members().unwrap().into_keys().collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn commands_of_operators_find_the_servers_in_etcd() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let place = Workplace::new();
    place.write("job.toml", &replaced(JOB, &[("epochs = 3\n", "epochs = 10000\n")]));
    let find = ["--etcd", &etcd.endpoint, "--etcd-prefix", PREFIX];
    let with = |arguments: &[&'static str]| [arguments, &find].concat();
    let said = ps_fails(&with(&["status"]), 1);
    let text = format!("no server is registered in etcd at {} below `{PREFIX}`", etcd.endpoint);
    assert!(said.contains(&text), "{said}");
    let servers = start_servers(&place, &etcd, 2);
    let ids = |states: &Value| -> Vec<u64> {
        let states = states.as_array().expect("a list of states");
        states.iter().filter_map(|state| state["id"].as_u64()).collect()
    };
    let answer = stdout(&ps(&with(&["status", "--json"])));
    let states: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(ids(&states), [0, 1], "{states}");
    let said = stdout(&ps(&with(&["status"])));
    assert!(servers.iter().all(|server| said.contains(&server.address)), "{said}");

    // A small patience would end the run early.
    let long = ["--set", "train.plateau.patience=1000"];
    let mut trainer = start_trainer(&place, "over", &etcd.endpoint, (0, 1), 2, &long);
    trainer.wait_for("epoch 2 done");
    let saved = ps_json(&with(&["checkpoint"]));
    assert_eq!(saved["run"], "over", "{saved}");
    // One of the servers owns the key.
    let found = ps_json(&with(&["explain", "user", "u1", "--key-type", "string"]));
    assert_eq!((&found["run"], &found["table"]), (&"over".into(), &"user".into()), "{found}");
    let said = ps_fails(&with(&["restore"]), 3);
    assert!(said.contains("the run over") && said.contains("nothing was done"), "{said}");
    // The addresses are either named or found.
    let said = ps_fails(&with(&["status", "127.0.0.1:7100"]), 2);
    assert!(said.contains("cannot be used with"), "{said}");
    let said = ps_fails(&["checkpoint"], 2);
    assert!(said.contains("required"), "{said}");
}

#[test]
fn a_server_that_comes_back_elsewhere_is_found() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let _others = [0, 2].map(|id| start_server(&place, &etcd.endpoint, id, "127.0.0.1:0", &[]));
    let held = once(Way::Question, op::APPLY, 7, Act::Hold);
    let (mut server, proxy) = start_behind(&place, &etcd.endpoint, 1, held);
    // Without the lease, the trainer would wait for a minute.
    let late = ["--set", "ps.deadline_seconds=60"];
    let mut trainer = start_trainer(&place, "over", &etcd.endpoint, (0, 1), 3, &late);
    proxy.wait_for_disturbance();
    server.kill();
    trainer.wait_for(&format!(
        "server 1 at {} went: its lease has expired, and the server gave no sign of life",
        proxy.address
    ));
    trainer.wait_for("server 1 is not registered; start it");
    let again = start_server(&place, &etcd.endpoint, 1, "127.0.0.1:0", &[]);
    assert_ne!(again.address, proxy.address);
    let ended = trainer.end();
    assert_eq!(ended.succeeded()["rewinds"].as_u64(), Some(1), "{}", ended.said);
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
    let directory = etcd.directory(PREFIX);
    let entry = directory.entry("over", 2).unwrap().expect("generation 2 is recorded");
    assert_eq!(entry.servers[1].0, again.address);
}

#[test]
fn of_two_servers_with_one_number_one_starts() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let place = small_place();
    let mut servers = start_servers(&place, &etcd, 1);
    let directory = etcd.directory(PREFIX);
    let boot = directory.members().unwrap()[&0].boot;
    let mut command = crate::harness::zillion(&["ps", "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--etcd", &etcd.endpoint, "--etcd-prefix", PREFIX]);
    command.args(["--etcd-lease-seconds", "2", "--store"]).arg(place.path(""));
    let refused = command.output().expect("the binary runs");
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let expected = format!(
        "server 0 is registered in etcd by another process, which is alive at {}",
        servers[0].address
    );
    assert!(said.contains(&expected), "{said}");
    assert!(servers[0].is_running());
    assert_eq!(directory.members().unwrap()[&0].boot, boot);
    // A server that is started again at the same address does not wait for its earlier lease.
    servers[0].kill();
    let address = servers[0].address.clone();
    let _again = start_server(&place, &etcd.endpoint, 0, &address, &[]);
    assert_ne!(directory.members().unwrap()[&0].boot, boot);
}

#[test]
fn a_run_goes_on_while_etcd_is_away() {
    let Some(mut etcd) = EtcdProcess::start() else { return };
    let place = small_place();
    train_alone(&place, "alone", &[]);
    for is_lost in [false, true] {
        let output = format!("over-{is_lost}");
        let (held, mut is_held) = (op::APPLY, false);
        let decide = move |seen: &super::proxy::Seen| {
            let is_it = !is_held && seen.op == held && seen.step >= 7 && seen.way == Way::Question;
            is_held |= is_it;
            if is_it { Act::Hold } else { Act::Pass }
        };
        let _other = start_server(&place, &etcd.endpoint, 0, "127.0.0.1:0", &[]);
        let (_server, proxy) = start_behind(&place, &etcd.endpoint, 1, decide);
        let directory = etcd.directory(PREFIX);
        let members = directory.members().unwrap();
        let boots: BTreeMap<u32, u64> = members.iter().map(|(&id, m)| (id, m.boot)).collect();
        let mut trainer = start_trainer(&place, &output, &etcd.endpoint, (0, 1), 2, &[]);
        proxy.wait_for_disturbance();
        etcd.kill();
        trainer.wait_for("the run goes on without etcd");
        proxy.release();
        assert_undisturbed(&trainer.end());
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
        if is_lost {
            etcd.forget();
        }
        etcd.restart();
        // The same processes register again, also in an etcd that has lost its data.
        wait_until(&*directory, "registered again", |found| *found == boots);
    }
}

#[test]
fn a_server_that_is_only_removed_from_etcd_trains_on() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let _other = start_server(&place, &etcd.endpoint, 0, "127.0.0.1:0", &[]);
    let (_server, proxy) =
        start_behind(&place, &etcd.endpoint, 1, once(Way::Question, op::APPLY, 7, Act::Hold));
    let directory = etcd.directory(PREFIX);
    let boots: BTreeMap<u32, u64> =
        directory.members().unwrap().into_iter().map(|(id, member)| (id, member.boot)).collect();
    let trainer = start_trainer(&place, "over", &etcd.endpoint, (0, 1), 2, &[]);
    proxy.wait_for_disturbance();
    let key = STANDARD.encode(format!("{PREFIX}/servers/1"));
    etcd.post("/v3/kv/deleterange", &format!(r#"{{"key": "{key}"}}"#));
    wait_until(&*directory, "registered again", |found| *found == boots);
    // The trainer doubts the server for a second. Its signs of life are enough.
    std::thread::sleep(Duration::from_millis(1500));
    proxy.release();
    assert_undisturbed(&trainer.end());
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn a_run_whose_server_is_lost_without_etcd_waits() {
    let Some(mut etcd) = EtcdProcess::start() else { return };
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let _other = start_server(&place, &etcd.endpoint, 0, "127.0.0.1:0", &[]);
    let (mut server, proxy) = start_behind(
        &place,
        &etcd.endpoint,
        1,
        once(Way::Question, op::APPLY, 7, Act::HoldAndLose),
    );
    let mut trainer = start_trainer(
        &place,
        "over",
        &etcd.endpoint,
        (0, 1),
        2,
        &["--set", "ps.deadline_seconds=2"],
    );
    proxy.wait_for_disturbance();
    etcd.kill();
    server.kill();
    proxy.release();
    trainer.wait_for("the run waits for its servers: etcd cannot be reached");
    // The server comes back before etcd, and waits for it too.
    let endpoint = etcd.endpoint.clone();
    let _server = std::thread::scope(|scope| {
        let again = scope.spawn(|| start_server(&place, &endpoint, 1, "127.0.0.1:0", &[]));
        etcd.restart();
        again.join().expect("the server starts")
    });
    let ended = trainer.end();
    assert_eq!(ended.succeeded()["rewinds"].as_u64(), Some(1), "{}", ended.said);
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn of_two_processes_that_want_to_be_trainer_0_one_trains() {
    let Some(etcd) = EtcdProcess::start() else { return };
    // One transaction wins.
    check_map(&|| etcd.directory("/zillion/map"));
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let _other = start_server(&place, &etcd.endpoint, 0, "127.0.0.1:0", &[]);
    let held = once(Way::Question, op::APPLY, 7, Act::Hold);
    let (_server, proxy) = start_behind(&place, &etcd.endpoint, 1, held);
    let mut rivals =
        [0, 1].map(|_| start_trainer(&place, "over", &etcd.endpoint, (0, 1), 2, &["--resume"]));
    proxy.wait_for_disturbance();
    let began = Instant::now();
    while !rivals.iter_mut().any(TrainerProcess::has_ended) {
        assert!(began.elapsed() < PATIENCE, "two processes are trainer 0");
        std::thread::sleep(Duration::from_millis(20));
    }
    proxy.release();
    let ended = rivals.map(TrainerProcess::end);
    let (won, lost): (Vec<&Ended>, Vec<&Ended>) =
        ended.iter().partition(|ended| ended.status.success());
    assert_eq!((won.len(), lost.len()), (1, 1), "{}\n{}", ended[0].said, ended[1].said);
    // Either the transaction or a server has refused the other one.
    let said = lost[0].failed();
    assert!(said.contains("trainer 0") || said.contains("is not after generation"), "{said}");
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn etcd_that_asks_for_a_user_gets_one() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let root = r#"{"name": "root", "password": "a:secret"}"#;
    etcd.post("/v3/auth/user/add", root);
    etcd.post("/v3/auth/user/add", r#"{"name": "guest", "password": "guest"}"#);
    etcd.post("/v3/auth/role/add", r#"{"name": "root"}"#);
    etcd.post("/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#);
    etcd.post("/v3/auth/enable", "{}");
    let folder = tempfile::tempdir().unwrap();
    let newest = |user: Option<&str>| {
        let file = folder.path().join("user");
        std::fs::write(&file, user.unwrap_or_default()).unwrap();
        let user_file = user.map(|_| file);
        let options = EtcdOptions { user_file, ..etcd.options(PREFIX) };
        open_etcd(&options).and_then(|directory| directory.newest("run"))
    };
    assert_eq!(newest(Some("root:a:secret\n")).unwrap(), 0);
    for (user, expected) in [
        (None, "user name is empty"),
        (Some("root:wrong"), "invalid user ID or password"),
        (Some("guest:guest"), "permission denied"),
        (Some("nobody"), "does not hold a user and a password"),
    ] {
        let error = newest(user).unwrap_err();
        assert!(matches!(error, Error::Start { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(expected) && error.contains("ps.etcd_user_file"), "{error}");
        assert!(!error.contains("wrong") && !error.contains("secret"), "{error}");
    }
}

/// Writes a certificate and its key in PEM. Returns their paths.
fn issue(folder: &Path, name: &str, issuer: &Issuer<'_, KeyPair>) -> [std::path::PathBuf; 2] {
    let names = vec!["127.0.0.1".to_owned()];
    let (params, key) = (CertificateParams::new(names).unwrap(), KeyPair::generate().unwrap());
    let files = ["pem", "key"].map(|ending| folder.join(format!("{name}.{ending}")));
    std::fs::write(&files[0], params.signed_by(&key, issuer).unwrap().pem()).unwrap();
    std::fs::write(&files[1], key.serialize_pem()).unwrap();
    files
}

#[test]
fn etcd_is_reached_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        (Issuer::new(params, key), file)
    };
    let ((ours, ca), (_, other_ca)) = (authority("ca.pem"), authority("other.pem"));
    let server = issue(folder.path(), "server", &ours);
    let client = issue(folder.path(), "client", &ours);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let more = [
        ["--cert-file".to_owned(), text(&server[0])],
        ["--key-file".to_owned(), text(&server[1])],
        ["--trusted-ca-file".to_owned(), text(&ca)],
    ];
    let more = [more.concat(), vec!["--client-cert-auth".to_owned()]].concat();
    let Some(etcd) = EtcdProcess::start_with("https", &more) else { return };
    let newest = |ca: &Path, client: Option<&[std::path::PathBuf; 2]>| {
        let options = EtcdOptions {
            ca_file: Some(ca.to_owned()),
            cert_file: client.map(|files| files[0].clone()),
            key_file: client.map(|files| files[1].clone()),
            ..etcd.options(PREFIX)
        };
        open_etcd(&options).and_then(|directory| directory.newest("run"))
    };
    assert_eq!(newest(&ca, Some(&client)).unwrap(), 0);
    let stranger = newest(&other_ca, Some(&client)).unwrap_err().to_string();
    assert!(stranger.contains("invalid peer certificate"), "{stranger}");
    assert!(newest(&ca, None).is_err());
}

#[test]
fn wrong_settings_of_etcd_are_refused() {
    let place = small_place();
    let serve = |listen: &str, more: &[&str]| {
        let mut command = crate::harness::zillion(&["ps", "serve", "--listen", listen, "--store"]);
        let output = command.arg(place.path("")).args(more).output().expect("the binary runs");
        assert!(!output.status.success(), "{more:?}");
        stderr(&output)
    };
    let free = "127.0.0.1:0";
    let away = format!("http://127.0.0.1:{}", free_port());
    let said = serve(free, &["--etcd", "127.0.0.1:2379"]);
    assert!(said.contains("not an address of etcd"), "{said}");
    let said = serve(free, &["--advertise", "10.0.0.1:7100"]);
    assert!(said.contains("--etcd"), "{said}");
    let said = serve(free, &["--etcd", &away, "--etcd-lease-seconds", "1"]);
    assert!(said.contains("ps.etcd_lease_seconds"), "{said}");
    let said = serve(free, &["--etcd", &away, "--etcd-user-file", "/nowhere"]);
    assert!(said.contains("ps.etcd_user_file"), "{said}");
    let token = place.text("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let said = serve("0.0.0.0:0", &["--etcd", &away, "--token-file", &token]);
    assert!(said.contains("--advertise"), "{said}");

    let store = place.text("");
    let etcd = ["--ps-etcd", &away, "--ps-store", &store, "--set", "ps.wait_seconds=1"];
    let (code, said) = place.train_fails(&[&etcd[..], &["--ps-count", "2"]].concat());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("etcd cannot be reached") && said.contains(&away), "{said}");
    let (code, said) = place.train_fails(&etcd);
    assert!(code == 2 && said.contains("ps.server_count"), "{said}");
    let both = ["--ps-count", "2", "--set", "ps.servers=[\"127.0.0.1:1\"]"];
    let (code, said) = place.train_fails(&[&etcd[..], &both].concat());
    assert!(code == 2 && said.contains("remove one of the two"), "{said}");
}
