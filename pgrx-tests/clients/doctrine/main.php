<?php
// Doctrine ORM: entities with keys from blocks of ids; what its schema tool would do.

declare(strict_types=1);

require_once '/usr/share/php/Doctrine/ORM/autoload.php';

use Doctrine\DBAL\DriverManager;
use Doctrine\ORM\EntityManager;
use Doctrine\ORM\EntityManagerInterface;
use Doctrine\ORM\Id\AbstractIdGenerator;
use Doctrine\ORM\Mapping as ORM;
use Doctrine\ORM\ORMSetup;
use Doctrine\ORM\Tools\SchemaTool;

/** Takes ids of the tag that is called as the table, 50 at a time. */
class LeafIds extends AbstractIdGenerator
{
    private int $next = 1;
    private int $last = 0;

    public function generateId(EntityManagerInterface $em, $entity): int
    {
        if ($this->next > $this->last) {
            $tag = $em->getClassMetadata($entity::class)->getTableName();
            $sql = 'SELECT * FROM leaf_segment_next_range(?, 50)';
            [$this->next, $this->last] = $em->getConnection()->fetchNumeric($sql, [$tag]);
        }
        return $this->next++;
    }
}

/** Takes one snowflake id. */
class SnowflakeIds extends AbstractIdGenerator
{
    public function generateId(EntityManagerInterface $em, $entity): int
    {
        return $em->getConnection()->fetchOne('SELECT leaf_snowflake_next()');
    }
}

#[ORM\Entity]
#[ORM\Table(name: 'events')]
class Event
{
    #[ORM\Id]
    #[ORM\Column(type: 'bigint', options: ['default' => 'leaf_snowflake_next()'])]
    #[ORM\GeneratedValue(strategy: 'CUSTOM')]
    #[ORM\CustomIdGenerator(class: SnowflakeIds::class)]
    public ?string $id = null;

    public function __construct(#[ORM\Column(type: 'text')] public string $what)
    {
    }
}

#[ORM\Entity]
#[ORM\Table(name: 'orders')]
class Order
{
    #[ORM\Id]
    #[ORM\Column(type: 'bigint', options: ['default' => "leaf_segment_next('orders'::text)"])]
    #[ORM\GeneratedValue(strategy: 'CUSTOM')]
    #[ORM\CustomIdGenerator(class: LeafIds::class)]
    public ?string $id = null;

    public function __construct(#[ORM\Column(type: 'text')] public string $item)
    {
    }
}

$connection = DriverManager::getConnection([
    'driver' => 'pdo_pgsql',
    'host' => getenv('PGHOST'),
    'port' => (int) getenv('PGPORT'),
    'dbname' => getenv('PGDATABASE'),
    'user' => getenv('PGUSER'),
    'password' => getenv('PGPASSWORD'),
]);
$em = new EntityManager($connection, ORMSetup::createAttributeMetadataConfiguration([__DIR__], true));

$orders = [];
for ($i = 0; $i < 500; $i++) {
    $orders[] = $order = new Order("cake $i");
    $em->persist($order);
}
$em->flush();
$last = 0;
foreach ($orders as $order) {
    // DBAL makes strings of bigints.
    if ((int) $order->id <= $last) {
        throw new LogicException("{$order->id} after $last");
    }
    $last = (int) $order->id;
}
if ($last !== 500) {
    throw new LogicException("500 keys took $last ids");
}
$em->clear();
if ($em->find(Order::class, $last)->item !== 'cake 499') {
    throw new LogicException('the key is of another row');
}

$event = new Event('started');
$em->persist($event);
$em->flush();
$em->clear();
if ((int) $event->id <= 2 ** 53 || $em->find(Event::class, $event->id)->what !== 'started') {
    throw new LogicException("{$event->id} is not the snowflake id of the event");
}

// DBAL reads of a default only what is quoted in it, and sets the same one again.
$tool = new SchemaTool($em);
$changes = $tool->getUpdateSchemaSql([$em->getClassMetadata(Order::class), $em->getClassMetadata(Event::class)]);
$same = "ALTER TABLE orders ALTER id SET DEFAULT leaf_segment_next('orders'::text)";
if ($changes !== [$same]) {
    throw new LogicException("the schema tool would do:\n" . implode("\n", $changes));
}
$connection->executeStatement($same);
$insert = "INSERT INTO orders (item) VALUES ('tea') RETURNING id";
if ($connection->fetchOne($insert) <= $last) {
    throw new LogicException('the default is not what it was');
}
echo "checked 502 ids\n";
