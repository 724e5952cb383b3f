//! The finding of the servers of a run: by their listed addresses, or by a directory in which they
//! have registered.
//!
//! A server in a directory may come back at another address, so that a client that waits for a
//! server reads the directory again. The client talks only to the process that has registered: the
//! number that the process drew when it started must be that in the directory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::LOOK;
use super::link::Link;
use super::options::{RegisteredServers, RemoteOptions, Stop};
use crate::error::{Error, Result};
use crate::map::{Member, MemberChange, Upkeep};

/// The pause before a directory is read again.
const PAUSE: Duration = Duration::from_millis(250);

/// The time within which a server must answer before the directory is read again.
const ANSWER: Duration = Duration::from_secs(1);

/// Connects to all servers, and waits until a moment for those that are not reachable yet.
pub(super) fn connect_all(options: &RemoteOptions, until: Instant) -> Result<Vec<Link>> {
    match &options.directory {
        Some(registered) => find(options, registered, Vec::new(), until),
        None => options.servers.iter().map(|at| Link::connect(options, at, until)).collect(),
    }
}

/// Asks all servers for their state before the session has begun. A server that has moved is
/// connected at its new address.
pub(super) fn greet_all(
    options: &RemoteOptions,
    links: &mut Vec<Link>,
    until: Instant,
) -> Result<()> {
    match &options.directory {
        Some(registered) => {
            *links = find(options, registered, std::mem::take(links), until)?;
            Ok(())
        }
        None => links.iter_mut().try_for_each(|link| link.greet_again(until)),
    }
}

/// Waits until all trainers have entered a generation that this trainer has begun.
///
/// # Errors
/// Returns an error that names the missing trainers if they have not come until a moment, and
/// [`Error::Rewound`] if the generation has ended meanwhile.
pub(super) fn wait_for_trainers(
    options: &RemoteOptions,
    generation: u64,
    links: &mut [Link],
    until: Instant,
) -> Result<()> {
    let boot = links[0].welcome().boot;
    let mut told = Vec::new();
    let began = Instant::now();
    loop {
        if let Some(cause) = links.iter().find_map(|link| link.health().lost()) {
            return Err(Error::Rewound { generation, cause });
        }
        let link = &mut links[0];
        link.greet_again(until)?;
        let welcome = link.welcome();
        if welcome.boot != boot || welcome.generation != generation || !welcome.is_open {
            let server = link.server();
            let cause = format!("it has ended on server {server} before all trainers were there");
            return Err(Error::Rewound { generation, cause });
        }
        if welcome.missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = welcome.missing.iter().map(usize::to_string).collect();
        let missing = match missing.len() {
            1 => format!("trainer {}", missing[0]),
            _ => format!("trainers {}", missing.join(", ")),
        };
        options.stop.check(&missing)?;
        if Instant::now() >= until {
            return Err(Error::Unreachable {
                problem: format!(
                    "{missing} of {} did not come within {:?} (`ps.wait_seconds`); start what is \
                     missing, or look at its log",
                    options.place.count, options.patience
                ),
            });
        }
        if told != welcome.missing && began.elapsed() > ANSWER {
            tracing::warn!("the run waits for {missing} of {}", options.place.count);
            told = welcome.missing.clone();
        }
        std::thread::sleep(LOOK);
    }
}

/// Makes a call to a home of the map, and makes it again while the home cannot be reached, until a
/// moment.
pub(super) fn wait_for_map<T>(
    stop: &Stop,
    until: Instant,
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut is_told = false;
    loop {
        stop.check("the map of the cluster")?;
        match call() {
            Err(Error::Unreachable { problem }) if Instant::now() < until => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("the run waits: {problem}");
                }
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// Connects to the servers that a directory names. `known` are the connections so far.
fn find(
    options: &RemoteOptions,
    registered: &RegisteredServers,
    known: Vec<Link>,
    until: Instant,
) -> Result<Vec<Link>> {
    let mut found: Vec<Option<Link>> = known.into_iter().map(Some).collect();
    found.resize_with(registered.count, || None);
    let mut told = None;
    loop {
        options.stop.check("its servers")?;
        let members = match registered.directory.members() {
            Ok(members) => Ok(members),
            Err(Error::Unreachable { problem }) => Err(problem),
            Err(error) => return Err(error),
        };
        let mut missing = None;
        for (id, link) in found.iter_mut().enumerate() {
            let moment = until.min(Instant::now() + ANSWER);
            let problem = match (&members, &mut *link) {
                (Ok(members), _) => {
                    let member = members.get(&(id as u32)).filter(|member| !member.is_leaving);
                    connect(options, (id, member), link, moment)?
                }
                // Servers that are connected are asked also while the directory is away.
                (Err(_), Some(open)) => greet(open, moment)?,
                (Err(problem), None) => Some(problem.clone()),
            };
            if problem.is_some() {
                *link = None;
            }
            missing = missing.or(problem);
        }
        let Some(problem) = missing else { return Ok(found.into_iter().flatten().collect()) };
        if Instant::now() >= until {
            let (patience, name) = (options.patience, registered.directory.name());
            return Err(Error::Unreachable {
                problem: format!(
                    "not all of the {} servers of {name} were found within {patience:?} \
                     (`ps.wait_seconds`): {problem}",
                    registered.count
                ),
            });
        }
        if told.as_ref() != Some(&problem) {
            tracing::warn!("the run waits for its servers: {problem}");
            told = Some(problem);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Connects to a server at its address in the directory. Returns the problem if it does not answer
/// there.
fn connect(
    options: &RemoteOptions,
    (id, member): (usize, Option<&Member>),
    link: &mut Option<Link>,
    moment: Instant,
) -> Result<Option<String>> {
    let Some(member) = member else {
        return Ok(Some(format!("server {id} is not registered; start it")));
    };
    let problem = match link.as_mut().filter(|link| link.server() == member.address) {
        Some(link) => greet(link, moment)?,
        None => match Link::connect(options, &member.address, moment) {
            Ok(new) => {
                *link = Some(new);
                None
            }
            Err(Error::Unreachable { problem }) => Some(problem),
            Err(error) => return Err(error),
        },
    };
    let is_other = |link: &Link| link.welcome().boot != member.boot;
    Ok(problem.or_else(|| {
        link.as_ref().filter(|link| is_other(link)).map(|link| {
            format!("the process at {} is not the server {id} that has registered", link.server())
        })
    }))
}

/// Asks a connected server for its state. Returns the problem if it does not answer.
fn greet(link: &mut Link, moment: Instant) -> Result<Option<String>> {
    match link.greet_again(moment) {
        Ok(()) => Ok(None),
        Err(Error::Unreachable { problem }) => Ok(Some(problem)),
        Err(error) => Err(error),
    }
}

/// Begins to watch the directory for changes of the servers.
pub(super) fn watch_servers(options: &RemoteOptions, links: &[Link]) -> Option<Upkeep> {
    let registered = options.directory.as_ref()?;
    let watched: Vec<_> = links.iter().map(|link| (link.welcome().boot, link.health())).collect();
    let known: BTreeMap<u32, Member> = (0..)
        .zip(links)
        .map(|(id, link)| {
            let (address, boot) = (link.server().to_owned(), link.welcome().boot);
            // Only the directory knows the lease, which is not needed here.
            (id, Member { id, address, boot, lease_seconds: 0, is_leaving: false })
        })
        .collect();
    let notice = move |change: &MemberChange| {
        let Some((boot, health)) = watched.get(change.id as usize) else { return };
        match &change.after {
            Some(after) if after.boot == *boot && !after.is_leaving => {}
            // The process that was watched is gone, or another one has taken its place.
            Some(after) if after.boot != *boot => health.lose(change.describe()),
            _ => health.raise_doubt(change.describe()),
        }
    };
    Some(registered.directory.watch(known, Box::new(notice)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_made_again_until_the_home_is_back() {
        let stop = Stop::default();
        let mut calls = 0;
        let result = wait_for_map(&stop, Instant::now() + Duration::from_secs(60), || {
            calls += 1;
            match calls {
                3 => Ok(7),
                _ => Err(Error::Unreachable { problem: "away".to_owned() }),
            }
        });
        assert_eq!((result.unwrap(), calls), (7, 3));
        let away = || Err::<(), _>(Error::Unreachable { problem: "away".to_owned() });
        assert_eq!(wait_for_map(&stop, Instant::now(), away).unwrap_err().to_string(), "away");
        let refused = || Err::<(), _>(crate::error::start_error("refused"));
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(wait_for_map(&stop, later, refused).unwrap_err().to_string(), "refused");
        stop.0.store(true, std::sync::atomic::Ordering::Relaxed);
        let error = wait_for_map(&stop, later, away).unwrap_err().to_string();
        assert!(error.contains("stopped while the trainer waited"), "{error}");
    }
}
