-- A small shop, and a role for it that owns its tables, and may issue ids of one tag.

CREATE EXTENSION leaf_id;
SELECT leaf_tag_create('orders', step => 1000, description => 'order numbers');
SELECT leaf_tag_create('calls', step => 1000, description => 'for the pure calls at the end');

CREATE ROLE shop LOGIN;
SELECT leaf_tag_grant('orders', 'shop');
CREATE SCHEMA shop AUTHORIZATION shop;
SET ROLE shop;

-- The keys are added after the run: a PRIMARY KEY would turn a duplicate id into an
-- error, and here they are to be counted.
CREATE TABLE shop.orders (
    id       bigint NOT NULL DEFAULT leaf_segment_next('orders'),
    customer text NOT NULL,
    placed   timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE shop.order_lines (
    id       bigint NOT NULL DEFAULT leaf_snowflake_next(),
    order_id bigint NOT NULL,
    product  text NOT NULL,
    quantity int NOT NULL
);
-- Ids that left in transactions that were rolled back: they must not be issued again.
CREATE TABLE shop.rolled_back (
    order_id bigint NOT NULL,
    line_ids bigint[] NOT NULL
);
