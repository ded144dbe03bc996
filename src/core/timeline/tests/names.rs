//! Which pod was meant.

use super::*;

fn known(namespace: &str, name: &str, uid: &str, gone: bool) -> Known {
    let gone = gone.then(|| wall(0));
    Known { uid: uid.into(), namespace: namespace.into(), name: name.into(), ending: false, gone }
}

fn ask(pod: &str, namespace: Option<&str>, known: &[Known]) -> Result<(String, Vec<String>), String> {
    let found = find(&Query { pod, namespace }, known)?;
    Ok((known[found.pod].uid.clone(), found.others.iter().map(|i| known[*i].uid.clone()).collect()))
}

#[test]
fn a_pod_is_found_by_name_by_namespace_and_by_uid() {
    let all = [
        known("a", "web", "u1", false),
        known("b", "web", "u2", false),
        known("a", "db", "u3", false),
        known("a", "web", "u4", true),
        known("a", "web", "u5", true),
        known("c", "job", "u6", true),
    ];
    let ok =
        |uid: &str, others: &[&str]| Ok((uid.to_owned(), others.iter().map(|o| (*o).to_owned()).collect()));
    for (case, pod, namespace, expected) in [
        ("the only one of its name", "db", None, ok("u3", &[])),
        ("with its namespace", "web", Some("b"), ok("u2", &[])),
        ("in one word", "b/web", None, ok("u2", &[])),
        ("twice the same", "b/web", Some("b"), ok("u2", &[])),
        ("the present one, with a hint at the others", "a/web", None, ok("u1", &["u4", "u5"])),
        ("a uid of one that is gone", "u5", None, ok("u5", &["u1", "u4"])),
        ("one that is gone", "job", None, ok("u6", &[])),
    ] {
        assert_eq!(ask(pod, namespace, &all), expected, "{case}");
    }
    let several = ask("web", None, &all).unwrap_err();
    assert_eq!(several, "several pods are called web: a/web, b/web; say which one");
    let contradiction = ask("a/web", Some("b"), &all).unwrap_err();
    assert!(contradiction.contains("is not in namespace b"), "{contradiction}");
    assert!(ask("u1", Some("b"), &all).is_err(), "a uid of another namespace");
}

#[test]
fn of_two_that_are_here_the_one_that_stays_is_meant() {
    let leaving = Known { ending: true, ..known("a", "web", "u1", false) };
    let all = [leaving, known("a", "web", "u2", false), known("a", "web", "u3", true)];
    assert_eq!(ask("web", None, &all), Ok(("u2".into(), vec!["u1".into(), "u3".into()])));
}

#[test]
fn of_several_that_are_gone_the_latest_is_meant() {
    let all = [known("a", "web", "u2", true), known("a", "web", "u1", true)];
    assert_eq!(ask("web", None, &all).unwrap().0, "u2");
}

#[test]
fn an_unknown_name_is_answered_with_what_is_known() {
    let all =
        [known("a", "web-0", "u1", false), known("a", "database", "u2", true), known("b", "x", "u3", false)];
    let said = ask("web", None, &all).unwrap_err();
    assert!(said.starts_with("no pod called web is on this node, nor is there one among the 1 "), "{said}");
    assert!(said.ends_with("; similar: a/web-0"), "{said}");
    let said = ask("databse", None, &all).unwrap_err();
    assert!(said.ends_with("; similar: a/database (gone)"), "{said}");
    let said = ask("nothing-like-it", Some("q"), &all).unwrap_err();
    assert!(
        said.contains(" in namespace q ") && said.ends_with("; known: a/web-0, a/database (gone), b/x"),
        "{said}"
    );
    assert!(!ask("web", None, &[]).unwrap_err().contains("known:"));
    let many: Vec<_> = (0..30).map(|n| known("a", &format!("p{n}"), &format!("u{n}"), false)).collect();
    let said = ask("something", None, &many).unwrap_err();
    assert!(said.ends_with("a/p9, and 20 more"), "{said}");
}
