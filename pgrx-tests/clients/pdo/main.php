<?php
// PDO: a row, many rows, what lastInsertId does.

declare(strict_types=1);

$db = new PDO(
    sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE')),
    getenv('PGUSER'),
    getenv('PGPASSWORD'),
);

function check(bool $holds, string $otherwise): void
{
    if (!$holds) {
        throw new LogicException($otherwise);
    }
}

$insert = $db->prepare('INSERT INTO orders (item) VALUES (?) RETURNING id');
$ids = [];
$db->beginTransaction();
for ($i = 0; $i < 200; $i++) {
    $insert->execute(["cake $i"]);
    $ids[] = $insert->fetchColumn();
}
$db->commit();
$many = $db->query("INSERT INTO orders (item) SELECT 'many ' || i FROM generate_series(1, 500) i RETURNING id");
$ids = array_merge($ids, $many->fetchAll(PDO::FETCH_COLUMN));
for ($i = 0; $i < count($ids); $i++) {
    check(is_int($ids[$i]) && $ids[$i] > ($ids[$i - 1] ?? 0), "not increasing: {$ids[$i]}");
}

// The trap: the session has used no sequence, so there is nothing to tell ...
try {
    $db->lastInsertId();
    check(false, 'lastInsertId() is fine');
} catch (PDOException $error) {
    check($error->getCode() === '55000', $error->getMessage());
}
// ... and once it has used one, lastInsertId() tells of that, whatever was inserted last.
$db->exec('CREATE TABLE other (id bigserial)');
$db->exec('INSERT INTO other DEFAULT VALUES');
$insert->execute(['tea']);
$id = $insert->fetchColumn();
check($db->lastInsertId() === '1' && $id > 700, 'lastInsertId() is right');

$event = $db->query("INSERT INTO events (what) VALUES ('started') RETURNING id")->fetchColumn();
check(is_int($event) && $event > 2 ** 53, 'a snowflake id is an int');
echo 'checked ', count($ids) + 1, " ids\n";
