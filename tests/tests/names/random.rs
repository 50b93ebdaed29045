//! Names made at random of what collations, quoting and templates stumble over, each beside a twin that hardly differs.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
};

use fence_runtime::{ErrorKind, LeaseName, MAX_NAME_BYTES};
use fence_tests::{
    conformance,
    jobs::token_of,
    owner::{
        Act::{Check, Execute, Progress},
        FOR_GOOD, Owner,
    },
    servers::TestDb,
};

conformance! { each_is_refused_or_kept_apart_from_every_other }

/// Pieces of names; with each its twins, which some collation or other takes for the same.
const PIECES: &[&[&str]] = &[
    &["a", "A", "ａ", "ª", "á", "a\u{301}", "à", "ä", "а"],
    &["ss", "ß", "ẞ", "SS", "ſs"],
    &["i", "I", "İ", "ı", "í"],
    &["fi", "ﬁ", "FI"],
    &["σ", "ς", "Σ"],
    &["1", "１", "①", "٣", "01", "1.0", "1e0"],
    &["", "\u{200b}", "\u{feff}", "\u{ad}", "\u{202e}", "\u{200d}", "\u{34f}", "\u{fe0f}"],
    &["a b", "a  b", "a\u{a0}b", "a\u{3000}b"],
    &["👧", "👧🏽", "👦", "👩\u{200d}👧"],
    &["日本", "日\u{200b}本", "にほん"],
    &["'", "''", "’", "\\'", "`", "\""],
    &["\\", "\\\\", "\\x27", "/", "¥"],
    &["%", "%%", "_", "*", "?", "$1", ":a", "@a"],
    &[";", ";;", "--", "/*", "*/", "#", "/*prefix*/"],
    &["{}", "{token}", "{{", "$$", "$fence$"],
    &["NULL", "null", "true", "0x31", "X'31'"],
    &[" ", "\t", "\n", "\0", "\u{1}", "\u{7f}", "\u{85}", "\u{a0}", "\u{2003}", "\u{2028}"],
    &["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "ééééééééééééééééééééééééééééééé"],
];

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn of<'a>(&mut self, twins: &[&'a str]) -> &'a str {
        twins[self.below(twins.len())]
    }
}

/// A name, and one that differs from it in one piece or in its length.
fn pair(random: &mut Random) -> [String; 2] {
    let kinds: Vec<_> = (0..=random.below(5)).map(|_| PIECES[random.below(PIECES.len())]).collect();
    let mut pieces: Vec<_> = kinds.iter().map(|twins| random.of(twins)).collect();
    let mut name = pieces.concat();
    if random.below(4) == 0 {
        // Just as long as may be, or a byte longer.
        name.push_str(&"x".repeat((MAX_NAME_BYTES + random.below(2)).saturating_sub(name.len())));
        return [name.clone(), name + "x"];
    }
    let at = random.below(pieces.len());
    pieces[at] = random.of(kinds[at]);
    [name, pieces.concat()]
}

/// As the documentation of [`LeaseName`] has it, in other words.
fn is_a_name(name: &str) -> bool {
    let ends = [name.chars().next(), name.chars().next_back()];
    (1..=190).contains(&name.len())
        && name.chars().all(|c| !('\0'..='\u{1f}').contains(&c) && !('\u{7f}'..='\u{9f}').contains(&c))
        && ends.into_iter().flatten().all(|c| !c.is_whitespace())
}

async fn each_is_refused_or_kept_apart_from_every_other<D: TestDb>(db: D) {
    db.sql("CREATE TABLE written (round bigint)").await;
    let seed = RandomState::new().hash_one(0u8);
    println!("seed {seed}");
    let mut random = Random(seed);
    for round in 0..fence_tests::rounds() {
        // A fence that has seen the tokens of the round before would notice that they begin again.
        let fence = db.fence_as("a").await;
        let mut names = BTreeSet::new();
        for name in (0..12).flat_map(|_| pair(&mut random)) {
            match LeaseName::new(name.clone()) {
                Ok(_) => {
                    assert!(is_a_name(&name), "seed {seed}: {name:?}");
                    names.insert(name);
                }
                Err(error) => {
                    assert!(!is_a_name(&name), "seed {seed}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Config);
                    assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
                }
            }
        }
        // All at once: were two of them one lease, the second would be contended.
        let mut owners = Vec::new();
        for name in &names {
            let owner = Owner::start_on::<D>(&fence, "a", name, FOR_GOOD, db.view()).await;
            let owner = owner.unwrap_or_else(|error| panic!("seed {seed}, {name:?}: {error}"));
            assert_eq!(owner.token(), 1, "seed {seed}, {name:?}");
            owners.push((name, owner));
        }
        let seen: Vec<_> = fence.leases().await.unwrap().into_iter().map(|lease| lease.lease).collect();
        assert_eq!(seen, names.iter().cloned().collect::<Vec<_>>(), "seed {seed}: in the order of their bytes");
        // What is done to one is done to no other: every third is expired, and loses.
        for (n, (name, owner)) in owners.iter_mut().enumerate() {
            owner.ok(Progress((*name).clone())).await;
            assert!(n % 3 > 0 || db.expire(name).await, "seed {seed}, {name:?}");
        }
        for (n, (name, mut owner)) in owners.into_iter().enumerate() {
            let there = fence.inspect(&LeaseName::new(name.clone()).unwrap()).await.unwrap().unwrap();
            assert_eq!((&there.lease, there.progress.as_ref()), (name, Some(name)), "seed {seed}");
            let held = n % 3 > 0;
            assert_eq!(there.remaining.is_some(), held, "seed {seed}, {name:?}");
            assert_eq!(owner.run(Check).await.is_ok(), held, "seed {seed}, {name:?}");
            let write = owner.run(Execute(format!("INSERT INTO written VALUES ({round})"))).await;
            assert_eq!(write.is_ok(), held, "seed {seed}, {name:?}");
            assert_eq!(owner.end().await.is_ok(), held, "seed {seed}, {name:?}");
            assert_eq!(fence.run(token_of(name.clone())).await.unwrap(), 2, "seed {seed}, {name:?}");
        }
        db.sql("DELETE FROM fenced_job_leases").await;
    }
}
