//! Runs variants of the same work in turns and compares them within one run: only the ratios mean something.

#![allow(dead_code, reason = "each bench uses its part")]

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use fence_runtime::{Backend, Error, Fence, FenceCtx};
use fence_tests::{
    jobs::{Body, job},
    owner::Named,
};
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

/// How often each variant has its turn, and for how long.
const ROUNDS: usize = 15;
const TURN: Duration = Duration::from_millis(200);

/// Runs a bench if it was asked for: `cargo test --all-targets` does not.
pub fn main(bench: impl Future<Output = ()>) {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    fence_tests::servers::block_on(bench);
}

/// Something that is done again and again: once by this client.
pub type Once<DB> = Arc<dyn for<'c> Fn(&'c FenceCtx<DB, Named>, usize) -> Body<'c, (), Error> + Send + Sync>;

/// The work of a variant.
pub fn once<DB: Backend>(
    work: impl for<'c> Fn(&'c FenceCtx<DB, Named>, usize) -> Body<'c, (), Error> + Send + Sync + 'static,
) -> Once<DB> {
    Arc::new(work)
}

/// How many jobs, each with a lease of its own, and how many clients in each.
#[derive(Clone, Copy)]
pub struct Crew {
    pub name: &'static str,
    pub jobs: usize,
    pub clients: usize,
}

/// One alone, eight that have a lease each, eight that share one.
pub const CREWS: [Crew; 3] = [
    Crew { name: "1 client", jobs: 1, clients: 1 },
    Crew { name: "8 clients, own leases", jobs: 8, clients: 1 },
    Crew { name: "8 clients, one lease", jobs: 1, clients: 8 },
];

/// Compares variants with the first of them, and prints one line for each.
pub async fn compare<DB: Backend>(title: &str, fence: &Fence<DB>, crew: Crew, variants: &[(&str, Once<DB>)]) {
    let (mut workers, mut runs) = (Vec::new(), Vec::new());
    for number in 0..crew.jobs {
        let (orders, taken) = mpsc::unbounded_channel::<(Once<DB>, oneshot::Sender<u64>)>();
        workers.push(orders);
        let work = job(format!("bench:{number}"), move |ctx| -> Body<'_, (), Error> {
            Box::pin(work(ctx, number * crew.clients, crew.clients, taken))
        });
        runs.push(tokio::spawn(fence.run(work.ttl(Duration::from_secs(600)))));
    }
    let turn = async |variant: &Once<DB>| {
        let begin = Instant::now();
        let done = join_all(workers.iter().map(async |worker| {
            let (done, counted) = oneshot::channel();
            worker.send((variant.clone(), done)).expect("the job runs");
            counted.await.expect("the job runs")
        }));
        done.await.iter().sum::<u64>() as f64 / begin.elapsed().as_secs_f64()
    };
    for (_, variant) in variants {
        turn(variant).await;
    }
    let mut rates = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (number, (_, variant)) in variants.iter().enumerate() {
            rates[number].push(turn(variant).await);
        }
    }
    println!("{title}, {}", crew.name);
    for (number, (name, _)) in variants.iter().enumerate() {
        let ratios = sorted(rates[number].iter().zip(&rates[0]).map(|(rate, base)| rate / base));
        let rate = sorted(rates[number].iter().copied())[ROUNDS / 2];
        println!(
            "  {name:<34} {:>5.2} × ({:.2}–{:.2})   {rate:>8.0}/s",
            ratios[ROUNDS / 2],
            ratios[ROUNDS / 4],
            ratios[ROUNDS * 3 / 4]
        );
    }
    drop(workers);
    for run in join_all(runs).await {
        run.expect("no panic").expect("the job ends well");
    }
}

async fn work<DB: Backend>(
    ctx: &FenceCtx<DB, Named>,
    first: usize,
    clients: usize,
    mut orders: mpsc::UnboundedReceiver<(Once<DB>, oneshot::Sender<u64>)>,
) -> Result<(), Error> {
    while let Some((variant, done)) = orders.recv().await {
        let until = Instant::now() + TURN;
        let counts = join_all((first..first + clients).map(async |client| {
            let mut count = 0;
            while Instant::now() < until {
                variant(ctx, client).await?;
                count += 1;
            }
            Ok::<u64, Error>(count)
        }));
        let count = counts.await.into_iter().sum::<Result<u64, Error>>()?;
        _ = done.send(count);
    }
    Ok(())
}

/// In ascending order.
pub fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}
