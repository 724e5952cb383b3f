//! Tests of the access file.

use proptest::prelude::*;

use super::*;
use crate::token::hash_token;

const NOW: u64 = 1_800_000_000;

fn parse(text: &str) -> Result<Identities> {
    Identities::parse(text, Path::new("access.toml"))
}

fn token(name: &str, secret: &str, rest: &str) -> String {
    let sha256 = hash_token(secret);
    format!("[[token]]\nname = '{name}'\nsha256 = '{sha256}'\nroles = ['score']\n{rest}\n")
}

#[test]
fn tokens_prove_principals_until_they_expire() {
    let file =
        token("a", "zln_a", "expires = 2027-01-15T09:00:00+01:00") + &token("b", "zln_b", "");
    let identities = parse(&file).unwrap();
    let by = |secret: &str, now| {
        identities.identify(&Credentials::bearer(secret), now).map(|caller| caller.name.clone())
    };
    // 2027-01-15T08:00:00Z is 1,800,000,000.
    assert_eq!(by("zln_a", NOW - 1), Ok("a".to_owned()));
    assert_eq!(by("zln_a", NOW), Err(Refusal::Expired));
    assert_eq!(by("zln_b", NOW), Ok("b".to_owned()));
    for (secret, refusal) in [
        ("zln_c", Refusal::UnknownToken),
        ("", Refusal::Malformed),
        (&"x".repeat(9000), Refusal::Malformed),
        ("a.b.c", Refusal::WrongKind),
    ] {
        assert_eq!(by(secret, NOW), Err(refusal));
    }
    assert_eq!(identities.identify(&Credentials::default(), NOW), Err(Refusal::NoCredentials));
}

#[test]
fn certificates_prove_principals_by_their_names() {
    let file = "[[certificate]]\nname = 'op'\nsan = 'spiffe://x/op'\nroles = ['operate']\nmodels = ['m']\n";
    let identities = parse(file).unwrap();
    let names = |names: &[&str]| CertificateNames {
        names: names.iter().map(|n| (*n).to_owned()).collect(),
    };
    let known = names(&["dns.example", "spiffe://x/op"]);
    let known = Credentials { bearer: None, certificate: Some(&known) };
    let caller = identities.identify(&known, NOW).unwrap();
    assert!(caller.check(Role::Operate, Some("m")).is_ok());
    assert_eq!(caller.check(Role::Operate, Some("n")), Err(Refusal::NoModel));
    assert_eq!(caller.check(Role::Score, Some("m")), Err(Refusal::NoRole(Role::Score)));
    let unknown = names(&["spiffe://x/opp"]);
    let unknown = Credentials { bearer: None, certificate: Some(&unknown) };
    assert_eq!(identities.identify(&unknown, NOW), Err(Refusal::UnknownCertificate));
    // A wrong token is refused even where the certificate is right.
    let both = Credentials { bearer: Some("zln_x"), ..known };
    assert_eq!(identities.identify(&both, NOW), Err(Refusal::UnknownToken));
}

#[test]
fn mistakes_in_the_file_are_named() {
    let good = token("a", "zln_a", "");
    for (file, expected) in [
        ("[[tokens]]\n".to_owned(), "tokens"),
        (good.replace("score", "admin"), "admin"),
        (good.replace("['score']", "[]"), "`roles` is empty"),
        (good.replace("sha256 = '", "sha256 = 'g"), "64 hexadecimal digits"),
        (format!("{good}{good}"), "the same `sha256`"),
        (token("a", "zln_a", "expires = 2027-01-15"), "write a time with its zone"),
        (token("", "zln_a", ""), "`name` that is empty"),
        (token("jwt:a", "zln_a", ""), "taken for another caller"),
        (token("anonymous", "zln_a", ""), "taken for another caller"),
        (
            format!("{good}[jwt]\nissuer = 'i'\naudience = 'a'\nkeys = 'https://i/jwks.json'\n"),
            "not read over the network",
        ),
        (token("a", "zln_a", "quota = { rows = -1 }"), "rows"),
        (
            format!("{good}[jwt]\nissuer = 'i'\naudience = 'a'\nkeys = '/nowhere/jwks.json'\n"),
            "/nowhere/jwks.json",
        ),
    ] {
        let error = parse(&file).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(
            !error.contains(&hash_token("zln_a")) || expected == "64 hexadecimal digits",
            "{error}"
        );
    }
}

#[test]
fn a_file_without_an_end_is_refused() {
    let error = Identities::load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("more than 4194304 bytes"), "{error}");
}

#[test]
fn dates_are_counted_as_the_calendar_does() {
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T12:34:56Z", 951_827_696),
        ("2027-01-15T08:00:00Z", 1_800_000_000),
        ("2100-03-01T00:00:00Z", 4_107_542_400),
    ] {
        assert_eq!(seconds_since_1970(&text.parse().unwrap()), Some(seconds), "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_is_a_panic(text in ".{0,200}", bearer in ".{0,60}") {
        let _ = parse(&text);
        let identities = parse(&token("a", "zln_a", "")).unwrap();
        prop_assert!(bearer == "zln_a" || identities.identify(&Credentials::bearer(&bearer), NOW).is_err());
    }
}
