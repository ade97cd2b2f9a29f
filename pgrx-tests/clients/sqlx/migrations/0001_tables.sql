SELECT leaf_tag_create('orders');
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), item text NOT NULL);
CREATE TABLE events (id bigint PRIMARY KEY DEFAULT leaf_snowflake_next(), what text NOT NULL);
INSERT INTO orders (item) VALUES ('from the migration');
