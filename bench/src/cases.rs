//! What is measured. Each case names the product first, then what it is held against.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::api::{Api, Connection};
use crate::raw::{Raw, host_exec};
use crate::records::Records;
use crate::stats::{Report, Samples};

type Case = fn(&Api, &Raw, usize, &mut Report) -> Result<()>;

pub const ALL: [(&str, Case); 6] = [
    ("exec-true", exec_true),
    ("exec-python", exec_python),
    ("create-first-command", create_first_command),
    ("200-execs-at-once", execs_at_once),
    ("30-creates-at-once", creates_at_once),
    ("list", list),
];

fn create(connection: &mut Connection<'_>) -> Result<String> {
    let record = connection.call("POST", "/v1/sandboxes", Some(&json!({})))?;
    ensure!(record["state"] == "running", "a new sandbox reads {}", record["state"]);
    Ok(record["id"].as_str().context("a record without an id")?.to_owned())
}

fn exec(connection: &mut Connection<'_>, id: &str, argv: &[&str]) -> Result<(Duration, Value)> {
    let start = Instant::now();
    let answer = connection.call("POST", &format!("/v1/sandboxes/{id}:exec"), Some(&json!({"argv": argv})))?;
    let took = start.elapsed();
    ensure!(answer["exitCode"] == 0, "{argv:?} answered {answer}");
    Ok((took, answer))
}

fn delete(connection: &mut Connection<'_>, id: &str) -> Result<()> {
    connection.call("DELETE", &format!("/v1/sandboxes/{id}"), None).map(drop)
}

fn exec_case(api: &Api, raw: &Raw, samples: usize, report: &mut Report, name: &str, argv: &[&str]) -> Result<()> {
    let mut connection = api.connect()?;
    let id = create(&mut connection)?;
    let by_hand = raw.run()?;
    let (mut product, mut runsc, mut host) = (Samples::default(), Samples::default(), Samples::default());
    // Warm both: the first run pages the program in.
    exec(&mut connection, &id, argv)?;
    by_hand.exec(argv)?;
    for n in 0..samples {
        product.push(exec(&mut connection, &id, argv)?.0);
        host.push(host_exec(argv)?);
        if n % 5 == 0 {
            runsc.push(by_hand.exec(argv)?);
        }
    }
    delete(&mut connection, &id)?;
    report
        .case(name, vec![("through the API", product), ("runsc exec by hand", runsc), ("fork+exec on the host", host)]);
    Ok(())
}

fn exec_true(api: &Api, raw: &Raw, samples: usize, report: &mut Report) -> Result<()> {
    exec_case(api, raw, samples, report, "exec true", &["true"])
}

fn exec_python(api: &Api, raw: &Raw, samples: usize, report: &mut Report) -> Result<()> {
    exec_case(api, raw, samples / 2, report, "exec python3 -c pass", &["/usr/bin/python3", "-c", "pass"])
}

fn create_first_command(api: &Api, raw: &Raw, samples: usize, report: &mut Report) -> Result<()> {
    let mut connection = api.connect()?;
    let (mut product, mut by_hand) = (Samples::default(), Samples::default());
    for _ in 0..(samples / 10).max(1) {
        let start = Instant::now();
        let id = create(&mut connection)?;
        exec(&mut connection, &id, &["true"])?;
        product.push(start.elapsed());
        delete(&mut connection, &id)?;
        let start = Instant::now();
        let container = raw.run()?;
        container.exec(&["true"])?;
        by_hand.push(start.elapsed());
    }
    report.case("create -> first command", vec![("through the API", product), ("runsc run + exec by hand", by_hand)]);
    Ok(())
}

/// Runs `count` calls at once, each on a connection of its own; answers each one's time.
fn at_once<F>(api: &Api, count: usize, call: F) -> Result<Samples>
where
    F: Fn(&mut Connection<'_>) -> Result<()> + Sync,
{
    let mut connections = (0..count).map(|_| api.connect()).collect::<Result<Vec<_>>>()?;
    let mut samples = Samples::default();
    let times = std::thread::scope(|scope| {
        let handles: Vec<_> = connections
            .iter_mut()
            .map(|connection| {
                let call = &call;
                scope.spawn(move || {
                    let start = Instant::now();
                    call(connection).map(|()| start.elapsed())
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a caller panicked"))))
            .collect::<Vec<_>>()
    });
    for time in times {
        samples.push(time?);
    }
    Ok(samples)
}

fn execs_at_once(api: &Api, _raw: &Raw, _samples: usize, report: &mut Report) -> Result<()> {
    let mut connection = api.connect()?;
    let id = create(&mut connection)?;
    let one_by_one = {
        let mut samples = Samples::default();
        let start = Instant::now();
        for _ in 0..200 {
            exec(&mut connection, &id, &["true"])?;
        }
        samples.push(start.elapsed());
        samples
    };
    let start = Instant::now();
    let each = at_once(api, 200, |connection| exec(connection, &id, &["true"]).map(drop))?;
    let mut wall = Samples::default();
    wall.push(start.elapsed());
    delete(&mut connection, &id)?;
    report.case("200 execs at once, wall", vec![("all at once", wall), ("one after the other", one_by_one)]);
    report.case("200 execs at once, each", vec![("through the API", each)]);
    Ok(())
}

fn creates_at_once(api: &Api, raw: &Raw, _samples: usize, report: &mut Report) -> Result<()> {
    let ids = std::sync::Mutex::new(Vec::new());
    let start = Instant::now();
    let each = at_once(api, 30, |connection| {
        let id = create(connection)?;
        exec(connection, &id, &["true"])?;
        ids.lock().map_err(|_| anyhow::anyhow!("a caller panicked"))?.push(id);
        Ok(())
    })?;
    let mut wall = Samples::default();
    wall.push(start.elapsed());
    let mut connection = api.connect()?;
    for id in ids.into_inner().map_err(|_| anyhow::anyhow!("a caller panicked"))? {
        delete(&mut connection, &id)?;
    }
    let mut by_hand = Samples::default();
    let start = Instant::now();
    let containers = (0..30)
        .map(|_| {
            let container = raw.run()?;
            container.exec(&["true"])?;
            Ok(container)
        })
        .collect::<Result<Vec<_>>>()?;
    by_hand.push(start.elapsed());
    drop(containers);
    report.case("30 creates at once, wall", vec![("through the API", wall), ("by hand, one by one", by_hand)]);
    report.case("30 creates at once, each", vec![("create + exec true", each)]);
    Ok(())
}

/// With ten sandboxes on record and with ten thousand: stopped ones, since only the list is measured.
fn list(api: &Api, raw: &Raw, samples: usize, report: &mut Report) -> Result<()> {
    let mut connection = api.connect()?;
    let id = create(&mut connection)?;
    connection.call("POST", &format!("/v1/sandboxes/{id}:stop"), Some(&json!({})))?;
    while connection.call("GET", &format!("/v1/sandboxes/{id}?waitFor=stopped&timeoutSeconds=60"), None)?["state"]
        != "stopped"
    {}
    let (few, _) = listed(&mut connection, raw.data_dir(), 9, samples)?;
    let (many, every) = listed(&mut connection, raw.data_dir(), 9_999, samples)?;
    delete(&mut connection, &id)?;
    report.case("list, first page of 100", vec![("10,000 on record", many), ("10 on record", few)]);
    report.case("list, every page", vec![("10,000 on record", every)]);
    Ok(())
}

/// First pages, and one walk over all, with so many more on record.
fn listed(connection: &mut Connection<'_>, data_dir: &Path, more: usize, samples: usize) -> Result<(Samples, Samples)> {
    let records = Records::add(data_dir, more)?;
    let (mut first, mut all) = (Samples::default(), Samples::default());
    for _ in 0..samples {
        let start = Instant::now();
        connection.call("GET", "/v1/sandboxes?limit=100", None)?;
        first.push(start.elapsed());
    }
    let (start, mut count, mut cursor) = (Instant::now(), 0, String::new());
    loop {
        let page = connection.call("GET", &format!("/v1/sandboxes?limit=100{cursor}"), None)?;
        count += page["data"].as_array().map_or(0, Vec::len);
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    all.push(start.elapsed());
    records.remove()?;
    ensure!(count > more, "{count} were listed of more than {more}");
    Ok((first, all))
}
